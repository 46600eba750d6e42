"""The short cut past the web framework: small writes whose head is known, answers that are ready."""
