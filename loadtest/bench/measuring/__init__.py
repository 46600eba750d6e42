"""Rounds, and what is measured in each."""
