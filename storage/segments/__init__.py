"""Segments: files with consecutive batches, their indexes, and the rules for removing them."""
