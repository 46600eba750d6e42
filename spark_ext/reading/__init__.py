"""A batch query: which offsets each task reads, and the task that reads them. A stream reads in the same tasks."""
