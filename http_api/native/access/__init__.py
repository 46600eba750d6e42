"""Native endpoints of access control and quotas: the mode, users, tokens, limits."""
