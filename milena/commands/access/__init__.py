"""Users, their tokens, and their permissions."""
