"""The console: a page on every node that calls the API like any other client."""
