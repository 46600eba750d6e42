"""How quick a cluster is, as a client sees it."""
