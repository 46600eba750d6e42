"""Load with every acknowledged record accounted for."""
