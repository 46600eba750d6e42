"""Report a run: tables, plots, and verdicts."""
