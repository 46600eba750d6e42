"""Parameters, bodies and errors: one definition of each reads it, checks it and describes it in OpenAPI."""
