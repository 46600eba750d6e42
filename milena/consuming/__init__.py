"""The consumer: members of consumer groups, positions, commits and rebalances."""
