"""The records of a batch as columns, which msgpack packs and unpacks as a whole, in C, within limits of memory.

Layout of the payload before compression, in msgpack::

    [offset_deltas | nil, timestamp_deltas | nil, keys | nil, values, headers | nil]

    offset_deltas     ascending integers, offset - base_offset; nil = dense: 0, 1, 2, ...
    timestamp_deltas  integers, timestamp - base_timestamp_ms; nil = all equal to it
    keys              binary or nil each; nil for the column = no record has a key
    values            binary or nil (a tombstone) each
    headers           nil or a list of [name (string), value (binary or nil)] each; order and repeats are kept

The bytes may be hostile. msgpack allocates a list of the length that an array *claims*, before it reads the items. An
empty array takes 1 byte in the payload and 72 in memory, so a small payload could allocate gigabytes. Hence two paths:

- A payload within ``_ONE_CALL_BYTES_MAX`` and ``_ONE_CALL_RECORDS_MAX`` is unpacked in one call. In the worst case it
  takes 1024 levels x 16384 items x 8 bytes = 128 MiB, which are released at once.
- A larger payload is unpacked column by column, in slices. The types of a slice are checked before the next slice is
  read. This costs about 1.6 times as much.
"""

from dataclasses import dataclass
from itertools import islice
from types import NoneType
from typing import Any

import msgpack  # type: ignore[import-untyped]  # ships no types

from milena.model.errors import CorruptBatchError, InvalidRecordError

Headers = list[tuple[str, bytes | None]]

HEADERS_PER_RECORD_MAX = 1024

_COLUMNS = 5
_NIL = b"\xc0"
_PLAIN_HEAD = b"\x95\xc0\xc0"
"""The start of a list of five items of which the first two are nil."""
_NIL_BYTE = 0xC0
_BINARY_8, _BINARY_16, _BINARY_32 = 0xC4, 0xC5, 0xC6
_ARRAY_4, _ARRAY_16, _ARRAY_32 = 0x90, 0xDC, 0xDD
_ONE_CALL_BYTES_MAX = 2 << 20
_ONE_CALL_RECORDS_MAX = 16_384
_SLICE_RECORDS = 4096

_INTEGERS: frozenset[type] = frozenset((int,))
_BINARIES: frozenset[type] = frozenset((bytes, NoneType))
_LISTS: frozenset[type] = frozenset((list, NoneType))


@dataclass(slots=True, init=False)
class RecordColumns:
    """Records as parallel columns of equal length; only ``values`` is always there.

    Invariants:
        - every column that is not None is as long as ``values``;
        - ``offset_deltas`` ascends strictly and starts at 0 or above.
    """

    offset_deltas: list[int] | None
    timestamp_deltas: list[int] | None
    keys: list[bytes | None] | None
    values: list[bytes | None]
    headers: list[Headers | None] | None

    def __init__(
        self,
        offset_deltas: list[int] | None,
        timestamp_deltas: list[int] | None,
        keys: list[bytes | None] | None,
        values: list[bytes | None],
        headers: list[Headers | None] | None,
    ) -> None:
        self.offset_deltas = offset_deltas
        self.timestamp_deltas = timestamp_deltas
        self.keys = keys
        self.values = values
        self.headers = headers


def pack_columns(columns: RecordColumns) -> bytes:
    """Pack the columns as an uncompressed payload.

    Raises:
        InvalidRecordError: a header name cannot be encoded as UTF-8, a record has too many headers, or an integer needs
            more than 64 bits.
    """
    headers = columns.headers
    if headers is not None and any(
        row is not None and len(row) > HEADERS_PER_RECORD_MAX for row in headers
    ):
        raise InvalidRecordError(f"a record has more than {HEADERS_PER_RECORD_MAX} headers")
    try:
        packed: bytes = msgpack.packb(
            (
                columns.offset_deltas,
                columns.timestamp_deltas,
                columns.keys,
                columns.values,
                headers,
            )
        )
    except UnicodeEncodeError as error:
        raise InvalidRecordError(f"a header name is not valid text: {error}") from error
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidRecordError(f"the records cannot be packed: {error}") from error
    return packed


def unpack_columns(payload: bytes | memoryview, record_count: int) -> RecordColumns:
    """Unpack the columns of ``record_count`` records; types and lengths are checked.

    Raises:
        CorruptBatchError: the payload has another layout, or another number of records.
    """
    try:
        if len(payload) <= _ONE_CALL_BYTES_MAX and record_count <= _ONE_CALL_RECORDS_MAX:
            return _unpack_in_one_call(payload, record_count)
        return _unpack_in_slices(payload, record_count)
    # Every failure of msgpack is a ValueError, except for an array that ends too early.
    except (ValueError, msgpack.UnpackException) as error:
        raise CorruptBatchError(f"the payload is not columns of records: {error}") from error


def are_plain(buffer: bytes, start: int, end: int, record_count: int) -> bool:
    """Whether ``buffer[start:end]`` is a valid payload without headers in which all records have the base timestamp.

    This is the most common payload: ``[nil, nil, keys or nil, values, nil]``. The check creates no object per record.
    If it returns False, the payload may still be valid: call ``unpack_columns``.
    """
    if end > len(buffer) or buffer[start : start + 3] != _PLAIN_HEAD:
        return False
    try:
        at = start + 3
        at = at + 1 if buffer[at] == _NIL_BYTE else _skip_binaries(buffer, at, record_count)
        at = _skip_binaries(buffer, at, record_count)
        return at == end - 1 and buffer[at] == _NIL_BYTE
    except IndexError:
        return False


def _skip_binaries(buffer: bytes, at: int, count: int) -> int:
    """Return the end of a column of ``count`` binaries or nils that starts at ``at``.

    Raises:
        IndexError: the bytes are no such column, or the buffer ends before the column does.
    """
    kind = buffer[at]
    if kind == _ARRAY_16:
        length = buffer[at + 1] << 8 | buffer[at + 2]
        at += 3
    elif kind == _ARRAY_32:
        length = int.from_bytes(buffer[at + 1 : at + 5], "big")
        at += 5
    else:
        length = kind - _ARRAY_4
        at += 1
    if length != count:
        raise IndexError(at)
    for _ in range(count):
        kind = buffer[at]
        if kind == _BINARY_8:
            at += 2 + buffer[at + 1]
        elif kind == _BINARY_16:
            at += 3 + (buffer[at + 1] << 8 | buffer[at + 2])
        elif kind == _NIL_BYTE:
            at += 1
        elif kind == _BINARY_32:
            at += 5 + int.from_bytes(buffer[at + 1 : at + 5], "big")
        else:
            raise IndexError(at)
    return at


def _unpack_in_one_call(payload: bytes | memoryview, record_count: int) -> RecordColumns:
    top: Any = msgpack.unpackb(
        payload,
        max_array_len=max(record_count, HEADERS_PER_RECORD_MAX),
        max_map_len=0,
        max_ext_len=0,
    )
    if type(top) is not list or len(top) != _COLUMNS:
        raise CorruptBatchError("the payload is not a list of five columns")
    offset_deltas, timestamp_deltas, keys, values, headers = top
    return RecordColumns(
        _check_column("offset_deltas", offset_deltas, _INTEGERS, record_count),
        _check_column("timestamp_deltas", timestamp_deltas, _INTEGERS, record_count),
        _check_column("keys", keys, _BINARIES, record_count),
        _check_values(_check_column("values", values, _BINARIES, record_count)),
        _pair_headers(_check_column("headers", headers, _LISTS, record_count)),
    )


def _check_column(
    name: str, column: object, types: frozenset[type], record_count: int
) -> list[Any] | None:
    if column is None:
        return None
    if type(column) is not list or len(column) != record_count:
        raise CorruptBatchError(f"{name} is not a column of record_count={record_count} items")
    _check_types(name, column, types)
    return column


def _check_types(name: str, items: list[Any], types: frozenset[type]) -> None:
    found = set(map(type, items))
    if not found <= types:
        names = sorted(kind.__name__ for kind in found - types)
        raise CorruptBatchError(f"{name} holds items of a wrong type: {', '.join(names)}")


def _check_values(values: list[Any] | None) -> list[bytes | None]:
    if values is None:
        raise CorruptBatchError("the column of values is missing")
    return values


def _pair_headers(column: list[list[Any] | None] | None) -> list[Headers | None] | None:
    if column is None:
        return None
    return [None if row is None else [_pair(item) for item in row] for row in column]


def _pair(item: object) -> tuple[str, bytes | None]:
    if type(item) is not list or len(item) != 2:
        raise CorruptBatchError("a header is not a pair of name and value")
    name, value = item
    if type(name) is not str:
        raise CorruptBatchError(f"a header name is not text but {type(name).__name__}")
    if type(value) not in _BINARIES:
        raise CorruptBatchError(f"a header value is not binary but {type(value).__name__}")
    return name, value


def _unpack_in_slices(payload: bytes | memoryview, record_count: int) -> RecordColumns:
    scalars = _Slices(payload, record_count, headers_max=0)
    scalars.begin()
    offset_deltas = scalars.column("offset_deltas", _INTEGERS)
    timestamp_deltas = scalars.column("timestamp_deltas", _INTEGERS)
    keys = scalars.column("keys", _BINARIES)
    values = _check_values(scalars.column("values", _BINARIES))
    # Only from here on may a column contain lists.
    rows = _Slices(payload[scalars.position :], record_count, headers_max=HEADERS_PER_RECORD_MAX)
    headers = rows.column("headers", _LISTS)
    rows.end()
    return RecordColumns(offset_deltas, timestamp_deltas, keys, values, headers)


class _Slices:
    """Reads one column after the other, in slices, so that a wrong length or type is found early."""

    def __init__(self, payload: bytes | memoryview, record_count: int, *, headers_max: int) -> None:
        self._payload = payload
        self._record_count = record_count
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=len(payload),
            max_array_len=headers_max,
            max_map_len=0,
            max_ext_len=0,
            list_hook=_check_header_list,
        )
        self._unpacker.feed(payload)

    @property
    def position(self) -> int:
        position: int = self._unpacker.tell()
        return position

    def begin(self) -> None:
        if self._unpacker.read_array_header() != _COLUMNS:
            raise CorruptBatchError("the payload is not a list of five columns")

    def end(self) -> None:
        if self.position != len(self._payload):
            raise CorruptBatchError("bytes after the last column")

    def column(self, name: str, types: frozenset[type]) -> list[Any] | None:
        if self._payload[self.position : self.position + 1] == _NIL:
            self._unpacker.skip()
            return None
        left = self._unpacker.read_array_header()
        if left != self._record_count:
            raise CorruptBatchError(
                f"{name} is not a column of record_count={self._record_count} items"
            )
        items: list[Any] = []
        while left:
            part = list(islice(self._unpacker, min(left, _SLICE_RECORDS)))
            if not part:
                raise CorruptBatchError(f"{name} ends too early")
            _check_types(name, part, types)
            items += part
            left -= len(part)
        return items


def _check_header_list(items: list[Any]) -> list[Any] | tuple[str, bytes | None]:
    """Check a list that msgpack has read: one header (name, value), or the headers of one record.

    A header becomes a tuple. So a list of tuples is the headers of a record, and any other list must be a header.
    """
    if all(type(item) is tuple for item in items):
        return items
    return _pair(items)
