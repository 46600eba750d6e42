"""Records out of topics, to a terminal or a pipe."""
