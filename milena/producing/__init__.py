"""The producer: batches, sequence numbers, deliveries and their receipts."""
