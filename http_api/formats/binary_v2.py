"""Records as kafka binary v2: keys and values are base64 strings. ``null`` and an absent field mean no value."""

from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from typing import Any

from http_api.formats.envelope import Column, decode_base64
from http_api.formats.rows import RowWriter
from http_api.formats.selection import Selection


def decode_items(items: list[Any], field: str, first: int) -> Column:
    """Decode base64 to bytes (``ItemsDecoder``)."""
    try:
        return [None if item is None else a2b_base64(item, strict_mode=True) for item in items]
    except (ValueError, TypeError):
        # One of the items is invalid. Decode them one by one, to report which.
        return [
            None if item is None else decode_base64(item, f"records[{index}].{field}")
            for index, item in enumerate(items, first)
        ]


def encode(writer: RowWriter, selection: Selection) -> list[bytes]:
    """Return one JSON row for each record, with key and value in base64."""
    rows: list[bytes] = []
    for piece in selection.slices:
        keys = None if piece.keys is None else _quoted(piece.keys)
        rows += writer.rows(piece, keys, _quoted(piece.values))
    return rows


def _quoted(column: Sequence[bytes | None]) -> list[bytes | None]:
    return [None if item is None else b'"%b"' % b2a_base64(item, newline=False) for item in column]
