"""Counts of a node, how Prometheus reads them, and the last hour of them."""
