"""Which brokers are alive and which lead: brokers register and send heartbeats, and the controller elects leaders."""
