"""One node: replication, the controller, the peer port, and how the parts are wired."""
