"""A number of an image that is equal on two nodes if their images are, at the price of what has changed.

Every command is applied on every node, and most of an image stays what it was: values of its maps are looked at once,
and known by their identity from then on, since an image never changes. That the bytes of equal images are equal is
checked by production itself, with the codec's own hash (``CheckImage``).
"""

from dataclasses import fields, is_dataclass
from typing import Any

from immutables import Map

from raft_meta.machine.image import Image

_FIELDS = tuple(field.name for field in fields(Image))


class ImageDigest:
    """Of the images of one node, one after the other."""

    def __init__(self) -> None:
        self._maps: dict[str, tuple[Map[Any, Any], int]] = {}
        self._values: dict[tuple[str, object], tuple[object, int]] = {}
        """(field, key) → the value that was there last, and its digest."""

    def of(self, image: Image) -> int:
        """Equal for equal images; of different ones it is not, but for chance."""
        parts = []
        for name in _FIELDS:
            value = getattr(image, name)
            parts.append(self._of_map(name, value) if type(value) is Map else repr(value))
        return hash(tuple(parts))

    def _of_map(self, name: str, items: Map[Any, Any]) -> int:
        known = self._maps.get(name)
        if known is not None and known[0] is items:
            return known[1]
        values, digest = self._values, 0
        for key, value in items.items():
            entry = values.get((name, key))
            if entry is None or entry[0] is not value:
                entry = values[name, key] = (value, hash((key, _digest(value))))
            # A sum: maps are equal in whichever order they are walked through.
            digest += entry[1]
        self._maps[name] = items, digest
        return digest


def _digest(value: object) -> int:
    if type(value) is Map:
        return sum(hash((key, _digest(item))) for key, item in value.items())
    if type(value) is bytes:
        return hash(value)
    names = _names.get(type(value))
    if names is None:
        names = tuple(field.name for field in fields(value)) if is_dataclass(value) else ()
        _names[type(value)] = names
    if names:
        return hash(tuple([_digest(getattr(value, name)) for name in names]))
    text = repr(value)
    # Its order would be part of its text.
    assert "Map(" not in text, text
    return hash(text)


_names: dict[type, tuple[str, ...]] = {}
"""Of the fields of each type that was met."""
