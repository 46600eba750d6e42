"""Simulate Kafka clients in a cluster: their requests pass through the handlers of nodes that fail, and come late."""
