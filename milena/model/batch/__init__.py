"""The record batch: its header, how it is encoded and decoded, what a client's is checked for."""
