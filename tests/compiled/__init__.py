"""The compiled tree, which must do what the sources do."""
