"""Counts of a node, and how Prometheus reads them."""
