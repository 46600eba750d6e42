"""Those who ask: loads that cost little, and clients of other programs."""
