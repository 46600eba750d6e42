"""Native endpoints of transactions: in one request, or with separate requests to begin, write and end."""
