"""Transactions: complete ones in one request, and sessions that clients write step by step."""
