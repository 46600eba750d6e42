"""Users, tokens, entries, quotas, and what is told of changes."""
