"""Records as kafka JSON v2: keys and values are any JSON, stored as the bytes of their compact form.

A JSON key ``"u1"`` is stored with its quotes. ``null`` and an absent field are no value at all (a tombstone).
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from http_api.formats.envelope import Column, ItemsDecoder, decode_envelope
from http_api.formats.rows import RowWriter
from http_api.formats.selection import Selection
from milena.model.errors import MalformedRequestError
from milena.model.requests import Records
from milena.model.turns import Steps, at_once

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
    return at_once(decode_steps(body, records_max=records_max))


def decode_steps(body: bytes, *, records_max: int) -> Steps[Records]:
    """Records of a body, decoded in steps, since a large one must not hold the loop."""
    encoder = _Encoder(_ExactBody(body), _records_of_body)
    return decode_envelope(body, encoder.items, records_max=records_max)


def decoders_of_writes(body: bytes) -> Callable[[int], ItemsDecoder]:
    """Decoders for a body that holds several lists of records: of the write of each number."""
    exact = _ExactBody(body)
    return lambda number: _Encoder(exact, lambda read: read["writes"][number]["records"]).items


def _records_of_body(read: Any) -> list[dict[str, Any]]:  # noqa: ANN401  (JSON that was checked before)
    records: list[dict[str, Any]] = read["records"]
    return records


class _ExactBody:
    """A body's numbers as they were written: what orjson reads may have lost some of their digits."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._read: Any = None
        self._has_long_numbers: bool | None = None

    def may_differ(self) -> bool:
        """Whether any number of the body is long enough."""
        if self._has_long_numbers is None:
            self._has_long_numbers = _MANY_DIGITS in self._body.translate(_DIGITS)
        return self._has_long_numbers

    def read(self) -> Any:  # noqa: ANN401  (JSON)
        """The body as the standard library reads it: its integers have no limit."""
        if self._read is None:
            try:
                self._read = json.loads(self._body)
            except (ValueError, RecursionError) as error:
                raise MalformedRequestError(f"the body cannot be read: {error}") from None
        return self._read


class _Encoder:
    """Turns values of one list of records into stored bytes. ``records_of`` finds it in the whole body."""

    def __init__(
        self, exact: _ExactBody, records_of: Callable[[Any], list[dict[str, Any]]]
    ) -> None:
        self._exact = exact
        self._records_of = records_of

    def items(self, items: list[Any], field: str, first: int) -> Column:
        """The items' compact JSON, made by one call: a call each would cost ten times as much."""
        row: Any = items[0]
        if len(items) > 1:
            row = [_SEPARATOR] * (2 * len(items) - 1)
            row[::2] = items
        try:
            joined = orjson.dumps(row)
        except orjson.JSONEncodeError as error:
            # It reads deeper nesting than it writes.
            raise MalformedRequestError(f"a {field} cannot be stored: {error}") from None
        if _EXPONENT in joined and self._exact.may_differ():
            records = self._records_of(self._exact.read())[first : first + len(items)]
            encoded = [_exact_json(record.get(field)) for record in records]
        elif len(items) == 1:
            encoded = [joined]
        else:
            encoded = joined[1:-1].split(_SEPARATED)
        assert len(encoded) == len(items), (len(encoded), len(items))
        if None in items:
            return [None if item is None else e for item, e in zip(items, encoded, strict=True)]
        return [*encoded]


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


def encode_each(writer: RowWriter, selection: Selection) -> list[bytes]:
    """All records; an error object in the place of one whose key or value is not JSON, with its bytes as base64."""
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
    """Positions of items that are not JSON."""
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
