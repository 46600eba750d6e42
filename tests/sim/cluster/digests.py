"""Compute a digest of an image that is equal for equal images, at a cost that depends only on changes.

Every command is applied on every node, and most parts of an image stay the same. Images are immutable. So each value in
a map is hashed once, and later recognized by its identity. Production's own check (``CheckImage``, with the codec's
hash) compares the encoded bytes.
"""

from dataclasses import fields, is_dataclass
from typing import Any

from immutables import Map

from raft_meta.machine.image import Image

_FIELDS = tuple(field.name for field in fields(Image))


class ImageDigest:
    """Computes the digests of one node's images, in order."""

    def __init__(self) -> None:
        self._maps: dict[str, tuple[Map[Any, Any], int]] = {}
        self._values: dict[tuple[str, object], tuple[object, int]] = {}
        """The latest value at (field, key), and its digest."""

    def of(self, image: Image) -> int:
        """Return the digest: equal for equal images, and different for different ones except by chance."""
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
            # Use a sum, because the order of a map's items must not matter.
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
    # The order of a map would be part of its text.
    assert "Map(" not in text, text
    return hash(text)


_names: dict[type, tuple[str, ...]] = {}
"""The names of the fields, by class."""
