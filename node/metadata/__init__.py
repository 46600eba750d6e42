"""What this node knows of the cluster: the applied image, who is told of it, and views of it."""
