"""Topics and their partitions: replicas, leaders and moves."""
