"""The cluster over HTTP: calls, routing, metadata and administration."""
