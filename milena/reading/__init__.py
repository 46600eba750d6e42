"""Read one partition: a cursor without I/O, and a reader that fetches ahead."""
