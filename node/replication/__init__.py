"""Decisions of partition replication: leader, follower, in-sync set. Pure."""
