"""Calls between nodes: one framed connection a pair, who may open it, and what silence means."""
