"""Nodes of this machine: started, killed, watched."""
