"""Members of consumer groups: positions, commits, rebalances."""
