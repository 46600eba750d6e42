"""The process of a node: its clock, logs, certificates, memory and descriptors; several nodes for development."""
