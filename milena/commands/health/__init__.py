"""The health of a cluster, once or watched."""
