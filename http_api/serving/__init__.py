"""One request: reading it, routing it, its rights and quotas, and its response."""
