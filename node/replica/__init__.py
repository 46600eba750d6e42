"""One replica on this node: its decisions (leader, follower) and the shell that owns its log."""
