"""Callers, their rights, and their shares of groups."""
