"""What Spark makes of topics, measured beside files: reads, streams, sinks, delay and memory; ``make bench-spark``."""
