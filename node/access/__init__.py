"""Who calls this node, and what becomes of users, tokens and entries: the cluster's gate, as one node keeps it."""
