"""The services behind the API. Each brings a request to the node that can answer it."""
