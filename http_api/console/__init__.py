"""The console: a page on every node that asks the API as any other client does."""
