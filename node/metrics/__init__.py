"""Counts of events on a node, their export to Prometheus, and their history of the last hour."""
