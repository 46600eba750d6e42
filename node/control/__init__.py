"""Who is alive and who leads: brokers register and send heartbeats, the controller decides."""
