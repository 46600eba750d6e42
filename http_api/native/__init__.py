"""The native API: Milena's own endpoints, such as metadata, producers, health and metrics."""
