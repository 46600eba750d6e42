"""A search over every moment at which the power may be cut; see ``search``."""
