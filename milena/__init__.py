"""The client and the command line."""
