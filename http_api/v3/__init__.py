"""The v3 API of Confluent's REST proxy: clusters, topics, configs, groups, records."""
