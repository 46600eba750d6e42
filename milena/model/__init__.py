"""Types that client and server share: record batches, errors, values, pending results."""
