"""The columns of rows that are read and written, and the conversion of stored batches to Arrow and back."""
