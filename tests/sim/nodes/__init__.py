"""Simulation of whole nodes: real shells and logs on virtual time, under faults drawn from a seed."""
