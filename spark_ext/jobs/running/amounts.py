"""Format counts in the sentences that jobs print, and counts and positions in the JSON that they write."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def counted(count: int, thing: str) -> str:
    """Return ``1 file``, ``1,000 files``, ``1 batch``, ``2 batches``."""
    if count == 1:
        return f"1 {thing}"
    return f"{count:,} {thing}{'es' if thing.endswith('ch') else 's'}"


def json_fields(counts: "DataclassInstance") -> dict[str, Any]:
    """Return the fields of a dataclass, and of those in it, by name; ``size_bytes`` is called ``bytes``."""
    return asdict(counts, dict_factory=_renamed)


def _renamed(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {"bytes" if name == "size_bytes" else name: value for name, value in fields}
