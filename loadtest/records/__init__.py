"""The records of a load: make them, send them, and read them back."""
