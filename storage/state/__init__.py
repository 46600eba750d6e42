"""State that is stored next to a log's records: epochs, writers, checkpoints; each small and checksummed."""
