"""What the driver asks the cluster, how long it puts up with no answer, and what tasks ask as."""
