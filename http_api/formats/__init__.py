"""Record formats: json, binary, raw batches."""
