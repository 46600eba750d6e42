"""Shared by all jobs: the cluster and credentials, the Spark session, errors, and the exit of a command."""
