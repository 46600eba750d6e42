"""Run a job on events, as a stream or a table: its options, event time, and its report."""
