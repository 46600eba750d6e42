"""Measure the speed of a cluster, as a client sees it."""
