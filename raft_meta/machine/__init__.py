"""The pure state machine of the cluster: commands in, image, events and response out."""
