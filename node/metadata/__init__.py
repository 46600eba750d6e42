"""The cluster as this node knows it: the applied image, who is told of it, and views of it."""
