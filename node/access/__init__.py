"""Authentication of callers on one node, and changes of users, tokens and access control entries."""
