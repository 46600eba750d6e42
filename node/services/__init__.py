"""Requests of the API, brought to the node that can answer them."""
