"""The archive: Parquet files, the manifest that lists the valid ones, and the reading of topics for it."""
