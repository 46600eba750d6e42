"""The ground floor, which client and server share: record batches, errors, values, results to come."""
