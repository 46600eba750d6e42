"""How a cluster is, now and watched."""
