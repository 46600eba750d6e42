"""Endpoints of Milena's own dialect: metadata, producers, health, metrics."""
