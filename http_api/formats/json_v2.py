"""Records as kafka JSON v2: keys and values are any JSON, stored as the bytes of their compact form.

A JSON key ``"u1"`` is stored with its quotes. ``null`` and an absent field mean no value (a tombstone).
"""

from collections.abc import Sequence
from typing import Any

import orjson

from http_api.formats import exact_json
from http_api.formats.envelope import Column
from http_api.formats.rows import Shown
from http_api.formats.selection import Slice

# Compact JSON has no newline. So many items can be written as one list with newlines between them, and then be split.
_SEPARATOR = orjson.Fragment(b"\n")
_SEPARATED = b",\n,"


def encode_items(items: list[Any], field: str, first: int) -> Column:
    """Return the compact JSON of each item (``ItemsDecoder``).

    One call encodes all of them; a call per item costs ten times as much.
    """
    count = len(items)
    row: Any = items[0]
    if count > 1:
        row = [_SEPARATOR] * (2 * count - 1)
        row[::2] = items
    try:
        joined = orjson.dumps(row)
    except orjson.JSONEncodeError:
        # An item is nested too deeply, or has an integer of more than 64 bits. Encode the items one by one.
        encoded = list(map(exact_json.dumps, items))
    else:
        encoded = [joined] if count == 1 else joined[1:-1].split(_SEPARATED)
    assert len(encoded) == count, (len(encoded), count)
    if None in items:
        return [None if item is None else e for item, e in zip(items, encoded, strict=True)]
    return [*encoded]


def shown(piece: Slice) -> Shown:
    """Return keys and values as they are stored, and the records in which one of them is not JSON (``Showing``)."""
    faults = _faults(piece.values)
    if piece.keys is not None:
        faults |= _faults(piece.keys)
    return piece.keys, piece.values, faults


def shown_item(item: bytes) -> bytes | None:
    """Return a key or value that is JSON; None if it is not."""
    return None if _faults([item]) else item


def _faults(column: Sequence[bytes | None]) -> set[int]:
    """Return the positions of items that are not JSON."""
    loads = orjson.loads
    faults: set[int] = set()
    for index, item in enumerate(column):
        if item is None:
            continue
        try:
            loads(item)
        except orjson.JSONDecodeError:
            faults.add(index)
    return faults
