"""Transactions of one request and of sessions, from the request to the commit that readers see."""
