"""Consumer groups in the simulation of a whole cluster: members and REST consumers that break down while nodes do."""
