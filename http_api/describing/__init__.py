"""What requests may say: parameters, bodies, errors; read, checked, and written down as OpenAPI."""
