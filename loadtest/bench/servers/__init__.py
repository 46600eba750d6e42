"""Start the servers of benchmarks: Milena's nodes, and the programs that they are compared with."""
