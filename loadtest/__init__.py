"""Load tests and benchmarks. A load test accounts for every record that the cluster acknowledged."""
