"""Parse the options of queries, and check them together (pure)."""
