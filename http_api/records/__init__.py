"""Parts of requests that write records, for all APIs of a node (v2, v3 and native)."""
