"""Life and leadership: brokers register and send heartbeats, the controller decides who leads."""
