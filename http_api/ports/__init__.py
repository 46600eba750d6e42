"""The interfaces through which the API asks the node."""
