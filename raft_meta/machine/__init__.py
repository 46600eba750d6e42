"""The pure state machine of the cluster: commands in, image and response out."""
