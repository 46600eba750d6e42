"""Print records of topics, to a terminal or a pipe."""
