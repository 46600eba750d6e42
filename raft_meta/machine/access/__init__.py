"""Users, tokens, entries, quotas, and the audit log of changes."""
