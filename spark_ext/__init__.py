"""Spark reads and writes Milena topics."""
