"""What a log remembers beside its records: epochs, writers, checkpoints, each small and checksummed."""
