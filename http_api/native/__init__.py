"""Endpoints of our own: metadata, producers, health, metrics."""
