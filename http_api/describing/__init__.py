"""Definitions of parameters, bodies and errors. Each is used to read and check requests, and to describe them."""
