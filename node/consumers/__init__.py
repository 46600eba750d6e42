"""REST consumers on a node: what their group's coordinator keeps in memory for them, and how every node reaches it."""
