"""The client for programs that block, on one event loop thread of its own."""
