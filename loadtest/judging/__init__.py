"""The ledger of written and read records on disk, and the judge that compares it with the topic."""
