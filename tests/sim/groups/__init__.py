"""Simulate consumer groups in a whole cluster: members and REST consumers break down while nodes do."""
