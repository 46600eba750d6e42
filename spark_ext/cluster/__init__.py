"""The driver's requests to the cluster, how long it retries them, and the credentials of tasks."""
