"""Replication of partitions between nodes: fetches, changes of the ISR, and the ends of transactions in logs."""
