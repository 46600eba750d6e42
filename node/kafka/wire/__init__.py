"""Kafka's messages as bytes: frames, headers, and the messages on the path of a record. Pure: no I/O, no clock."""
