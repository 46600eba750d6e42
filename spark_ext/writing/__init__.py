"""Rows to topics: a plain write, at least once; a transaction, once or not at all."""
