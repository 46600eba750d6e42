"""Whether the process runs pure Python, or a build in which the hot modules are compiled (build_support.py)."""

from milena.model.batch import header


def build_kind() -> str:
    """Return ``compiled`` or ``pure``."""
    return "pure" if header.__file__.endswith(".py") else "compiled"
