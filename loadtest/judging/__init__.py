"""What was written and read, on disk, and what the judge finds in it."""
