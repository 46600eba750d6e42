"""JSON Schemas of what the API takes and gives: handlers read names of fields here, ``describing.openapi`` the rest."""
