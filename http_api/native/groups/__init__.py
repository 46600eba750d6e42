"""Consumer groups: the endpoints for members and for operators."""
