"""Liveness and leadership: brokers register and send heartbeats, and the controller elects leaders."""
