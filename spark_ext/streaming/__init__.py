"""Read a stream as one batch query after the other, each from the end of the previous one."""
