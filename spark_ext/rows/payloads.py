"""Convert the payload of a batch to Arrow columns, and back, without a Python object per record (pure).

``milena.model.columns`` has the layout. A key or value is an item: a head (msgpack's type and size) and its bytes. The
start of an item is known only after the item before it was read. Reading item by item costs one Python step per record,
which is more than everything else. But few values contain a byte that looks like the first byte of a head; English text
contains none. So numpy finds all such bytes at once. The first one is a head. If each item ends exactly at the next of
these bytes, all of them are heads.

A payload is *plain* if this method applies, and the records have no headers and no offset gaps. msgpack decodes any
other payload.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgpack  # type: ignore[import-untyped]  # ships no types
import numpy as np
import pyarrow as pa

RECORDS_MIN = 1_024
"""The fewest records for this decoder. For fewer records, msgpack's objects cost less than numpy's calls."""

_LIST_OF_FIVE = b"\x95"
_NIL = b"\xc0"
_BINARY_8, _BINARY_16, _BINARY_32 = 0xC4, 0xC5, 0xC6
_HEADS = np.array([_NIL[0], _BINARY_8, _BINARY_16, _BINARY_32], np.uint8)
_HEAD_BYTES = np.array([1, 2, 3, 5], np.int32)
_SIZES = np.array([1 << 8, 1 << 16])
"""From these sizes on, the size field of an item's head takes two bytes, and four bytes."""
_BINARY_MASK = 0xFE
"""A mask under which the heads with one and two bytes of size are equal."""

_ONE_BYTE_END = 0x80
"""Integers below this take one byte each."""
_WIDTHS = {0xCC: 2, 0xCD: 3, 0xCE: 5}
"""The bytes that a larger integer takes, by its first byte."""

RUNS_MAX = 16
"""The most runs of equally long integers in one column; ascending times have four at most."""

_PART_BYTES = 64 << 10

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
Octets = np.ndarray[tuple[int], np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainColumns:
    """Records without offset gaps and headers. If ``timestamp_deltas`` is None, all have the base timestamp."""

    timestamp_deltas: Integers | None
    keys: pa.Array
    values: pa.Array


def plain_columns(payload: bytes | memoryview, record_count: int) -> PlainColumns | None:
    """Return the columns of ``record_count`` records, copied; None if the payload is not plain, or invalid."""
    if record_count < RECORDS_MIN:
        return None
    try:
        return _PlainReader(payload, record_count).columns()
    except _NotPlainError:
        return None


def _possible_heads(octets: Octets) -> Integers:
    """Return the positions of bytes that could be the head of a binary of at most 64 KiB.

    The octets are searched in parts that share one scratch buffer: touching new memory costs more than the search.
    """
    scratch = np.empty(min(len(octets), _PART_BYTES), np.uint8)
    found = [np.empty(0, np.int64)]
    for first in range(0, len(octets), _PART_BYTES):
        part = octets[first : first + _PART_BYTES]
        kinds = np.bitwise_and(part, _BINARY_MASK, out=scratch[: len(part)])
        found.append(np.flatnonzero(np.equal(kinds, _BINARY_8, out=kinds.view(np.bool_))) + first)
    return np.concatenate(found)


class _NotPlainError(Exception):
    """The payload is not plain."""


class _PlainReader:
    """Reads one payload from start to end. It checks every size in the payload, because the bytes may be hostile."""

    def __init__(self, payload: bytes | memoryview, record_count: int) -> None:
        self._payload = payload
        self._octets: Octets = np.frombuffer(payload, np.uint8)
        self._count = record_count
        self._column_head: bytes = msgpack.Packer().pack_array_header(record_count)
        self._heads = _possible_heads(self._octets)
        self._at = 0

    def columns(self) -> PlainColumns:
        self._expect(_LIST_OF_FIVE + _NIL)
        timestamp_deltas = None if self._skip(_NIL) else self._integers()
        has_keys = not self._skip(_NIL)
        keys = self._binaries() if has_keys else pa.nulls(self._count, pa.binary())
        values = self._binaries()
        self._expect(_NIL)
        if self._at != len(self._octets):
            raise _NotPlainError
        return PlainColumns(timestamp_deltas=timestamp_deltas, keys=keys, values=values)

    def _skip(self, expected: bytes) -> bool:
        end = self._at + len(expected)
        is_there = self._payload[self._at : end] == expected
        if is_there:
            self._at = end
        return is_there

    def _expect(self, expected: bytes) -> None:
        if not self._skip(expected):
            raise _NotPlainError

    def _integers(self) -> Integers:
        self._expect(self._column_head)
        runs: list[Integers] = []
        left = self._count
        while left:
            run = self._run(left)
            if not len(run) or len(runs) == RUNS_MAX:
                raise _NotPlainError
            runs.append(run)
            left -= len(run)
        return np.concatenate(runs)

    def _run(self, count_max: int) -> Integers:
        """Return the next integer and those after it of the same width; empty if the next one is cut off."""
        kind = int(self._octets[self._at]) if self._at < len(self._octets) else _ONE_BYTE_END
        width = 1 if kind < _ONE_BYTE_END else _WIDTHS.get(kind, 0)
        if not width:
            raise _NotPlainError
        octets = self._octets[self._at : self._at + count_max * width]
        items = octets[: len(octets) // width * width].reshape(-1, width)
        is_other = items[:, 0] >= _ONE_BYTE_END if width == 1 else items[:, 0] != kind
        items = items[: is_other.argmax()] if is_other.any() else items
        self._at += items.size
        digits = items if width == 1 else np.ascontiguousarray(items[:, 1:])
        return digits.view(f">u{digits.shape[1]}").ravel().astype(np.int64)

    def _binaries(self) -> pa.Array:
        self._expect(self._column_head)
        octets = self._octets
        first = int(np.searchsorted(self._heads, self._at))
        heads = self._heads[first : first + self._count]
        # An item's size field has at most two bytes, and at least a nil follows the last item.
        if len(heads) < self._count or heads[0] != self._at or heads[-1] + 2 >= len(octets):
            raise _NotPlainError
        starts, sizes = heads + 2, octets[heads + 1].astype(np.int64)
        is_long = octets[heads] == _BINARY_16
        if is_long.any():
            starts += is_long
            sizes = np.where(is_long, sizes << 8 | octets[heads + 2], sizes)
        ends = starts + sizes
        if ends[-1] >= len(octets) or (ends[:-1] != heads[1:]).any():
            raise _NotPlainError
        self._at = int(ends[-1])
        # The bounds of heads and items, alternating.
        bounds = np.empty(2 * self._count + 1, np.int32)
        bounds[:-1:2], bounds[1::2], bounds[-1] = heads, starts, self._at
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self._payload)]
        turns = pa.Array.from_buffers(pa.binary(), 2 * self._count, buffers)
        return turns.take(pa.array(np.arange(1, 2 * self._count, 2)))


def packed_payload(
    timestamp_deltas: Sequence[int] | None, keys: pa.Array | None, values: pa.Array
) -> bytes:
    """Return the payload of records without headers, byte for byte as ``pack_columns`` makes it from lists."""
    parts = [_LIST_OF_FIVE, _NIL, msgpack.packb(timestamp_deltas)]
    parts += [_NIL] if keys is None or keys.null_count == len(keys) else _packed_column(keys)
    parts += [*_packed_column(values), _NIL]
    return b"".join(parts)


def _packed_column(column: pa.Array) -> list[bytes | memoryview]:
    column = column.cast(pa.binary())
    count = len(column)
    # ``concat_arrays`` gives all heads, then all items. ``turns`` reorders them: a head, its item, the next head.
    turns = np.empty(2 * count, np.int32)
    turns[::2], turns[1::2] = np.arange(count), np.arange(count, 2 * count)
    joined = pa.concat_arrays([_heads_of(column), column]).take(pa.array(turns))
    _, bounds, data = joined.buffers()
    end = int(np.frombuffer(bounds, np.int32)[2 * count])
    return [msgpack.Packer().pack_array_header(count), memoryview(data)[:end]]


def _heads_of(column: pa.Array) -> pa.Array:
    """Return msgpack's head of each item; for a null item, nil."""
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    sizes: Integers = np.where(is_null, 0, np.diff(_bounds(column)))
    kinds = np.where(is_null, 0, 1 + np.searchsorted(_SIZES, sizes, side="right"))
    bounds = np.zeros(len(column) + 1, np.int32)
    np.cumsum(_HEAD_BYTES[kinds], out=bounds[1:])
    heads = np.empty(int(bounds[-1]), np.uint8)
    heads[bounds[:-1]] = _HEADS[kinds]
    for kind in range(1, len(_HEADS)):
        mine = kinds == kind
        ends, of_mine = bounds[1:][mine], sizes[mine]
        for place in range(int(_HEAD_BYTES[kind]) - 1):
            heads[ends - 1 - place] = of_mine >> 8 * place & 0xFF
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(heads)]
    return pa.Array.from_buffers(pa.binary(), len(column), buffers)


def _bounds(column: pa.Array) -> Integers:
    """Return the starts of the items of a binary column in its data, and the end of the last one."""
    found = np.frombuffer(column.buffers()[1], np.int32)
    return found[column.offset : column.offset + len(column) + 1].astype(np.int64)
