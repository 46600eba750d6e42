"""Benchmarks with real processes, in which the compared programs take turns."""
