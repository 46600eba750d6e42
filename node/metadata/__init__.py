"""The cluster's state as this node knows it: the applied image, its listeners, and views of it."""
