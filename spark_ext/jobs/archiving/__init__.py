"""The archive: Parquet files and the manifest that says which of them count; how topics are read for it."""
