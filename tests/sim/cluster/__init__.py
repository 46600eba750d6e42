"""Simulation of a whole cluster: production nodes, quorum and sockets included, on virtual time under seeded faults."""
