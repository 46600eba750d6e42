"""JSON Schemas of requests and responses: handlers read field names here, and ``serving.openapi`` the rest."""
