"""Records in: batches, sequence numbers, deliveries and their receipts."""
