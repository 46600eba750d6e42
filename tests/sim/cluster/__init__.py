"""Simulate a whole cluster: production nodes with quorum and sockets, on virtual time, under faults from a seed."""
