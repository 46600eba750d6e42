"""JSON Schemas of requests and responses. Handlers take field names from them, and ``serving.openapi`` the schemas."""
