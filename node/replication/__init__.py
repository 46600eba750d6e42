"""Replication of partitions between nodes: fetches, changes of the ISR, and markers of transactions in logs."""
