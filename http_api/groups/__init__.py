"""Parts of requests about consumer groups, for the v3 and the native API."""
