"""The v3 dialect: clusters, topics, configs."""
