"""Start, kill and watch nodes on this machine."""
