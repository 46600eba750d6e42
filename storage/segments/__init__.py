"""Runs of batches in files, their indexes and tables, and which of them may go."""
