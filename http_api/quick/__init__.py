"""The path past the web framework: small writes with a known head, and responses that are ready."""
