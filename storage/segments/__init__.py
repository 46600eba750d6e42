"""Files with runs of batches, their indexes and tables, and the rules for removing them."""
