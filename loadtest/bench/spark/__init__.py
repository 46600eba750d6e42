"""Benchmarks of Spark on topics, compared with files: reads, streams, sinks, delay, memory (``make bench-spark``)."""
