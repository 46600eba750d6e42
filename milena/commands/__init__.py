"""The commands of ``milena``; ``milena.cli`` finds them by name."""
