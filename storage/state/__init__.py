"""State beside a log's records: epochs, writers, checkpoints, each small and checksummed."""
