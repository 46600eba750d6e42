"""Fast paths that bypass the web framework: small writes with a known head, and refusals of bad credentials."""
