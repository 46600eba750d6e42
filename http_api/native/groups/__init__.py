"""Consumer groups as their members and their operators see them."""
