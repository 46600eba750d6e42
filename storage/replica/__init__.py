"""A replica's folder, the data directory with all folders, and the recovery of both after a crash."""
