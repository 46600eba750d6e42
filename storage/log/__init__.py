"""One partition's log: append, read, sync, cut at both ends."""
