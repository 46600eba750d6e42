"""Modules that take the place of others for the test suites of Kafka clients. Each is found by its own name."""
