"""Plan which offsets each task of a batch query reads, and read them. A stream uses the same tasks."""
