"""The columns that a topic is read as and written from, and stored batches as Arrow."""
