"""Servers for benchmarks: nodes, and the programs that they are compared with."""
