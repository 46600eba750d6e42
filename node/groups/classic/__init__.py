"""Kafka's classic groups: members join through rebalances, and one of them computes the assignment."""
