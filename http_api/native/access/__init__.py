"""Who may do what, and how much of it: users, tokens, entries, quotas."""
