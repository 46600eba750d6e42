"""JSON Schemas of what the API takes and gives: handlers read names of fields here, ``http_api.openapi`` the rest."""
