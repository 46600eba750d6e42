"""Topics and their partitions: replicas, leaders, moves."""
