"""The APIs of the interface: one module per group of keys, and the table of all of them (``registry``)."""
