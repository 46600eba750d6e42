"""One partition's log on one node: append, read, sync, truncate, remove old segments."""
