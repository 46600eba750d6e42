"""Responses without an end, and responses that clients do not read."""
