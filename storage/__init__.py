"""The partitioned log on disk: record batches, segments, indexes, recovery. Synchronous, no clock, no network."""
