"""``python -m milena`` is the command ``milena``."""

from milena.cli import main

main()
