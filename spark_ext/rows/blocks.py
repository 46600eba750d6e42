"""Take records out of Arrow batches, a column at a time (pure). Keys and values stay in Arrow, sizes in numpy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from milena.model.columns import Headers
from spark_ext.errors import RecordError
from spark_ext.rows.write_schema import WriteColumns

RUN_BYTES_MAX = 1 << 20
"""The most bytes of keys and values in a run: far below a producer's buffer, but enough to make a row cheap."""

HEADER_FRAME_BYTES = 32
"""Bytes of a header in a batch without its name and value."""

_US_PER_MS = 1000

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """Records by column, all of the same length; None means that there is no such column.

    ``keys`` and ``values`` are binary columns. ``sizes`` has the bytes of each record's key, value and headers.
    """

    topics: Sequence[str | None] | None
    partitions: Sequence[int | None] | None
    headers: Sequence[Headers | None] | None
    times_ms: Sequence[int | None] | None
    keys: pa.Array | None
    values: pa.Array
    sizes: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRun:
    """Consecutive records with the same topic, partition, headers and time."""

    topic: str | None
    partition: int | None
    headers: Headers | None
    timestamp_ms: int | None
    keys: list[bytes | None] | None
    values: list[bytes | None]


def block_of(rows: pa.RecordBatch, columns: WriteColumns) -> RowBlock:
    """Return the records of an Arrow batch, in order."""
    keys = None if columns.key is None else _binaries(rows.column(columns.key))
    values = _binaries(rows.column(columns.value))
    headers = None if columns.headers is None else _headers(rows.column(columns.headers))
    sizes = _lengths(values)
    if keys is not None:
        sizes = sizes + _lengths(keys)
    if headers is not None:
        sizes = sizes + np.fromiter(map(_size_of, headers), np.int64, len(headers))
    return RowBlock(
        topics=None if columns.topic is None else rows.column(columns.topic).to_pylist(),
        partitions=None
        if columns.partition is None
        else rows.column(columns.partition).to_pylist(),
        headers=headers,
        times_ms=None if columns.timestamp is None else _times_ms(rows.column(columns.timestamp)),
        keys=keys,
        values=values,
        sizes=sizes,
    )


def runs_in(block: RowBlock) -> Iterator[RowRun]:
    """Yield the records of a block in runs; a run is cut where it exceeds ``RUN_BYTES_MAX``."""
    ends = np.cumsum(block.sizes)
    keys = None if block.keys is None else items_of(block.keys)
    values = items_of(block.values)
    first = 0
    for (topic, partition, headers, timestamp_ms), last in _places(block):
        while first < last:
            before = int(ends[first - 1]) if first else 0
            cut = min(last, int(np.searchsorted(ends, before + RUN_BYTES_MAX)) + 1)
            yield RowRun(
                topic=topic,
                partition=partition,
                headers=headers,
                timestamp_ms=timestamp_ms,
                keys=None if keys is None else keys[first:cut],
                values=values[first:cut],
            )
            first = cut


_Place = tuple[str | None, int | None, Headers | None, int | None]
"""The topic, partition, headers and time of a run."""


def _places(block: RowBlock) -> Iterator[tuple[_Place, int]]:
    """Yield each run's place and the row at which the run ends (exclusive)."""
    columns = (block.topics, block.partitions, block.headers, block.times_ms)
    count = len(block.values)
    if not any(columns):
        yield (None, None, None, None), count
        return
    places: Iterator[_Place] = zip(
        block.topics or repeat(None, count),
        block.partitions or repeat(None, count),
        block.headers or repeat(None, count),
        block.times_ms or repeat(None, count),
        strict=True,
    )
    end = 0
    for place, same in groupby(places):
        end += sum(1 for _ in same)
        yield place, end


def _binaries(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    if pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column


def items_of(column: pa.Array) -> list[bytes | None]:
    """Return a binary column as a list."""
    found: list[bytes | None] = column.to_numpy(zero_copy_only=False).tolist()
    return found


def _lengths(column: pa.Array) -> Integers:
    found: Integers = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
    return found


def _headers(column: pa.Array) -> list[Headers | None]:
    return [None if row is None else list(map(_header, row)) for row in column.to_pylist()]


def _header(given: dict[str, Any] | None) -> tuple[str, bytes | None]:
    if given is None or given["key"] is None:
        raise RecordError("column headers: a header has no key; give it one, or leave it out")
    return given["key"], given["value"]


def _size_of(headers: Headers | None) -> int:
    return sum(
        HEADER_FRAME_BYTES + len(name.encode()) + len(value or b"") for name, value in headers or ()
    )


def _times_ms(column: pa.Array) -> list[int | None]:
    micros = column.cast(pa.int64()).to_pylist()
    return [None if each is None else each // _US_PER_MS for each in micros]
