"""Compare an archive with the topic that it was made from."""
