"""The ledger of written and read records, on disk, and the judge of it."""
