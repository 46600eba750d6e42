"""The v2 API of Kafka REST proxies."""
