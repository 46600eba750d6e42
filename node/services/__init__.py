"""What the API asks of a node, brought to whoever can answer it."""
