"""Streams (responses that may have no end), and limits for clients that do not read their responses."""
