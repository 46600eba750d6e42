"""Fast paths that bypass the web framework: writes and fetches with a known head, and refusals of bad credentials."""
