"""Transactions of Kafka clients in a cluster under faults."""
