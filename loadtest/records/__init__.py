"""The records of a load: how they are made, sent and read back."""
