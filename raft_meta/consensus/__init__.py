"""Raft: pysyncobj's core embedded behind guards, with our own log, transport and snapshots."""
