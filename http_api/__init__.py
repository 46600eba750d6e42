"""The HTTP API: parse and limit, call one port, serialise."""
