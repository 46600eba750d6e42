"""The rows of the table, and the names of their contenders."""
