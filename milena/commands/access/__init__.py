"""Users, their tokens, and what each may."""
