"""Records as kafka JSON v2: keys and values are any JSON, stored as the bytes of their compact form.

A JSON key ``"u1"`` is stored with its quotes. ``null`` and an absent field mean no value (a tombstone).
"""

from collections.abc import Sequence
from typing import Any

import orjson

from http_api.formats import exact_json
from http_api.formats.envelope import Column
from http_api.formats.rows import RowWriter
from http_api.formats.selection import Selection

# Compact JSON has no newline. So many items can be written as one list with newlines between them, and then be split.
_SEPARATOR = orjson.Fragment(b"\n")
_SEPARATED = b",\n,"


def encode_items(items: list[Any], field: str, first: int) -> Column:
    """Return the compact JSON of each item (``ItemsDecoder``).

    One call encodes all of them; a call per item costs ten times as much.
    """
    row: Any = items[0]
    if len(items) > 1:
        row = [_SEPARATOR] * (2 * len(items) - 1)
        row[::2] = items
    try:
        joined = orjson.dumps(row)
    except orjson.JSONEncodeError:
        # An item is nested too deeply, or has an integer of more than 64 bits. Encode the items one by one.
        encoded = list(map(exact_json.dumps, items))
    else:
        encoded = [joined] if len(items) == 1 else joined[1:-1].split(_SEPARATED)
    assert len(encoded) == len(items), (len(encoded), len(items))
    if None in items:
        return [None if item is None else e for item, e in zip(items, encoded, strict=True)]
    return [*encoded]


def encode(writer: RowWriter, selection: Selection) -> tuple[list[bytes], int | None]:
    """Return the rows up to the first record whose key or value is not JSON, and its offset."""
    rows: list[bytes] = []
    for piece in selection.slices:
        good = _json_count(piece.values)
        if piece.keys is not None:
            good = min(good, _json_count(piece.keys))
        sound = piece.between(0, good)
        rows += writer.rows(sound, sound.keys, sound.values)
        if good < len(piece.values):
            return rows, piece.offsets[good]
    return rows, None


def encode_each(writer: RowWriter, selection: Selection) -> list[bytes]:
    """Return a row for each record. A record that is not JSON becomes an error object."""
    rows: list[bytes] = []
    for piece in selection.slices:
        faults = _faults(piece.values)
        if piece.keys is not None:
            faults |= _faults(piece.keys)
        if not faults:
            rows += writer.rows(piece, piece.keys, piece.values)
            continue
        for index in range(len(piece.values)):
            if index in faults:
                rows.append(writer.fault_row(piece, index, _shown, "JSON"))
            else:
                one = piece.between(index, index + 1)
                rows += writer.rows(one, one.keys, one.values)
    return rows


def _shown(item: bytes) -> bytes | None:
    return item if _json_count([item]) else None


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


def _json_count(column: Sequence[bytes | None]) -> int:
    """Return how many items from the first on are JSON."""
    loads = orjson.loads
    count = 0
    try:
        for item in column:
            if item is not None:
                loads(item)
            count += 1
    except orjson.JSONDecodeError:
        return count
    return count
