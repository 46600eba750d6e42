"""One replica on this node: its decisions as leader or follower, and the runner, which owns its log."""
