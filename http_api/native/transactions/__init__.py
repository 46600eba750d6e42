"""Transactions: whole ones in one request, and sessions that are written step by step."""
