"""Answers without an end, and answers that nobody takes."""
