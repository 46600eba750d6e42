"""Records as kafka JSON v2: keys and values are any JSON, stored as the bytes of their compact form.

A JSON key ``"u1"`` is stored with its quotes. ``null`` and an absent field are no value at all (a tombstone).
"""

import json
from collections.abc import Sequence
from typing import Any

import orjson

from http_api.formats.envelope import Column, decode_envelope
from http_api.formats.rows import RowWriter
from http_api.formats.selection import Selection
from http_api.ports import Records
from storage.errors import MalformedRequestError

# A raw newline never occurs in compact JSON, so that it tells apart the items of one big dump.
_SEPARATOR = orjson.Fragment(b"\n")
_SEPARATED = b",\n,"

# orjson reads an integer above 64 bits as a float, and writes a float of that size with an exponent.
_EXPONENT = b"e+"
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS = b"0" * 19


def decode(body: bytes, *, records_max: int) -> Records:
    """The records of a request's body.

    Raises:
        InvalidRequestError, NotFoundError, LimitReachedError: see ``decode_envelope``.
    """
    return decode_envelope(body, _Encoder(body).column, records_max=records_max)


class _Encoder:
    """Turns columns of one body into stored bytes."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._exact: list[dict[str, Any]] | None = None

    def column(self, items: list[Any], field: str) -> Column:
        """The items' compact JSON, made by one call: a call each would cost ten times as much."""
        row: list[Any] = [_SEPARATOR] * (2 * len(items) - 1)
        row[::2] = items
        try:
            joined = orjson.dumps(row)
        except orjson.JSONEncodeError as error:
            # It reads deeper nesting than it writes.
            raise MalformedRequestError(f"a {field} cannot be stored: {error}") from None
        if _EXPONENT in joined and _MANY_DIGITS in self._body.translate(_DIGITS):
            encoded = [_exact_json(record.get(field)) for record in self._exact_records()]
        else:
            encoded = joined[1:-1].split(_SEPARATED)
        assert len(encoded) == len(items), (len(encoded), len(items))
        if None in items:
            return [None if item is None else e for item, e in zip(items, encoded, strict=True)]
        return [*encoded]

    def _exact_records(self) -> list[dict[str, Any]]:
        """The records as the standard library reads them: its integers have no limit."""
        if self._exact is None:
            try:
                records: list[dict[str, Any]] = json.loads(self._body)["records"]
            except (ValueError, RecursionError) as error:
                raise MalformedRequestError(f"the body cannot be read: {error}") from None
            self._exact = records
        return self._exact


def _exact_json(value: object) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise MalformedRequestError(f"a value cannot be stored: {error}") from None


def encode(writer: RowWriter, selection: Selection) -> tuple[list[bytes], int | None]:
    """The records up to the first whose key or value is not JSON, and the offset of that one."""
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


def _json_count(column: Sequence[bytes | None]) -> int:
    """How many items from the first on are JSON."""
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
