"""Users, tokens, access control entries, quotas, and the audit log of changes."""
