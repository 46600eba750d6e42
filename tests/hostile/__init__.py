"""Hostile clients against real nodes: what they send, and what it must not do to everybody else."""
