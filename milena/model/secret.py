"""Secrets: texts that no log, error or repr shows."""

from typing import final


@final
class Secret:
    """A text that is shown as ``***``; only ``reveal`` returns it. Pickling keeps the text: Spark's tasks need it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)
