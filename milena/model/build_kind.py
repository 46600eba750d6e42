"""The kind of build that runs: pure Python, or with the hot modules compiled (build_support.py)."""

from milena.model.batch import header


def build_kind() -> str:
    """Return ``compiled`` or ``pure``."""
    return "pure" if header.__file__.endswith(".py") else "compiled"
