"""Authentication of callers, and changes of users, tokens and entries, as one node handles them."""
