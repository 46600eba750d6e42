"""Compaction to the last record of each key: which records stay, how far a log is compacted, and one run."""
