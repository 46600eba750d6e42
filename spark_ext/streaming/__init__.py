"""A stream that is read: one batch query after the other, each from where the last one ended."""
