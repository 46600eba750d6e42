"""The client for blocking programs, on its own event loop thread."""
