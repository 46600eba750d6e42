"""Callers (authenticated clients), their rights, and limits on the groups that they create."""
