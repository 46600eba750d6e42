"""The v2 dialect of Kafka REST proxies."""
