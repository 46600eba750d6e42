"""Benchmarks on real processes, in which contenders take turns: the programs and their tables."""
