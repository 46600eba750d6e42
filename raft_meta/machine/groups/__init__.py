"""Groups, their offsets, and REST consumers."""
