"""The interfaces through which the API calls the node."""
