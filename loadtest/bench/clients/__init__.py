"""Clients for benchmarks: loads that cost little, and clients of other programs."""
