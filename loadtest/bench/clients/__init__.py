"""Clients for benchmarks: load generators that use little CPU, and clients of other programs."""
