"""Findings: tables, pictures, verdicts."""
