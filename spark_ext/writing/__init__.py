"""Write rows to topics: a plain write is at least once; a transaction takes effect once or not at all."""
