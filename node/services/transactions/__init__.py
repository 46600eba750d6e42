"""Transactions: of one request or of a session, from what is asked to the commit that readers see."""
