"""Which build runs: the modules as they are written, or the hot ones compiled (build_support.py)."""

from milena.model.batch import header


def build_kind() -> str:
    """``compiled`` or ``pure``."""
    return "pure" if header.__file__.endswith(".py") else "compiled"
