"""Consumer groups on a node: the coordinator's part, and how every node reaches it."""
