"""Transactions of one request, and sessions: from the request until readers see what was committed."""
