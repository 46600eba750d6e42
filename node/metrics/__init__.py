"""Counts of a node, their form for Prometheus, and their last hour."""
