"""The record batch: its header, encoding, decoding, and the checks of a client's batch."""
