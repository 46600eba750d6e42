"""Who calls, what they may, and how much of the node they may take."""
