"""Paths by which a step reaches the cluster: each module knows one family of requests."""
