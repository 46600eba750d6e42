"""Write an archive back into a topic: the plan, the position, and the report."""
