"""Rights and their bounds: users, tokens, entries, quotas."""
