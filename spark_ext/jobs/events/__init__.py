"""How a job on events is run, as a stream or a table: its options, the time that counts, its report."""
