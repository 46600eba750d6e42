"""Test Milena from outside: real clusters, rules taken only from the documents, no import of the project."""
