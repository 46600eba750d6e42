"""Judge Milena from outside: real clusters, the documents as the only source, no import of the project."""
