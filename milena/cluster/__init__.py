"""The cluster over HTTP: calls, routing, metadata, administration."""
