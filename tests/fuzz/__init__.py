"""Hostile bytes for every decoder of the project; see ``targets``."""
