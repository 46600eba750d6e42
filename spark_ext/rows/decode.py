"""Decode stored batches to Arrow record batches, a column at a time (pure).

A plain payload becomes Arrow arrays directly (``spark_ext.rows.payloads``). Any other payload becomes lists first:
msgpack makes them and Arrow converts them, both in C. Numpy computes offsets and timestamps. Batches are collected
across chunks and partitions until they are large enough to send to the JVM.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa

from milena.model.batch.decode import columns_of, iterate_headers, plain_payload
from milena.model.batch.header import BatchHeader
from milena.model.columns import Headers, RecordColumns
from milena.model.types import TimestampType
from milena.records import FetchedChunk
from spark_ext.rows.payloads import PlainColumns, plain_columns
from spark_ext.rows.read_schema import ARROW_HEADERS_ITEM, Column, Projection

RECORDS_PER_ARROW_BATCH = 10_000
BYTES_PER_ARROW_BATCH = 16 << 20
"""The limits of an Arrow batch: the number of records, as in Spark's own batches, and the bytes of payload.

A batch of 32,768 records does not fit the processor's caches: decoding takes 1.4 times as long, with 65,536 twice.
"""

_HEADER_ALONE = {Column.TOPIC, Column.PARTITION, Column.OFFSET, Column.TIMESTAMP_TYPE}
"""The columns that the header of a dense batch determines without its payload."""

_US_PER_MS = 1000

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
SmallIntegers = np.ndarray[tuple[int], np.dtype[np.int32]]


class ArrowRows:
    """Collects records and returns them as Arrow record batches of one schema.

    ``add`` takes chunks in the order of the result; ``take`` returns the collected records and forgets them.

    Invariants:
        - the arrays of every projected column have ``record_count`` items in total; other columns have no arrays.
    """

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._wanted = frozenset(projection.columns)
        self._schema = projection.arrow_schema()
        self._clear()

    def _clear(self) -> None:
        self.record_count = 0
        self._bytes = 0
        self._keys = _Binaries()
        self._values = _Binaries()
        self._headers: list[Headers | None] = []
        self._offsets: list[Integers] = []
        self._timestamps: list[Integers] = []
        self._counts: list[int] = []
        self._topics: list[str] = []
        self._partitions: list[int] = []
        self._timestamp_types: list[int] = []

    @property
    def is_full(self) -> bool:
        """Return whether the collected records are enough for a batch."""
        return self.record_count >= RECORDS_PER_ARROW_BATCH or self._bytes >= BYTES_PER_ARROW_BATCH

    def add(self, chunk: FetchedChunk) -> Iterator[pa.RecordBatch]:
        """Add the records of a chunk, cut to its offsets; yield the batches that become full.

        Raises:
            CorruptBatchError: a payload does not hold columns of records.
        """
        for position, header in iterate_headers(chunk.data):
            if header.is_control or header.last_offset < chunk.start_offset:
                continue
            if header.base_offset >= chunk.end_offset:
                break
            self._add_batch(chunk, header, position)
            if self.is_full:
                yield self.take()

    def _add_batch(self, chunk: FetchedChunk, header: BatchHeader, position: int) -> None:
        is_dense = header.record_count == header.last_offset_delta + 1
        if is_dense and self._wanted <= _HEADER_ALONE:
            columns = None
            offsets = np.arange(header.base_offset, header.next_offset, dtype=np.int64)
        else:
            columns = _columns(chunk, header, position)
            offsets = _offsets(header, columns)
        first, last = np.searchsorted(offsets, (chunk.start_offset, chunk.end_offset)).tolist()
        if first == last:
            return
        self.record_count += last - first
        self._counts.append(last - first)
        self._topics.append(chunk.topic)
        self._partitions.append(chunk.partition)
        self._timestamp_types.append(int(header.timestamp_type))
        self._offsets.append(offsets[first:last])
        if columns is not None:
            self._bytes += header.uncompressed_bytes
            self._add_columns(header, columns, first, last)

    def _add_columns(
        self, header: BatchHeader, columns: RecordColumns | PlainColumns, first: int, last: int
    ) -> None:
        if Column.VALUE in self._wanted:
            self._values.add(columns.values[first:last])
        if Column.KEY in self._wanted:
            no_keys: list[bytes | None] = [None] * (last - first)
            self._keys.add(no_keys if columns.keys is None else columns.keys[first:last])
        if Column.HEADERS in self._wanted:
            headers = columns.headers if isinstance(columns, RecordColumns) else None
            self._headers += headers[first:last] if headers else [None] * (last - first)
        if Column.TIMESTAMP in self._wanted:
            self._timestamps.append(_timestamps(header, columns)[first:last])

    def take(self) -> pa.RecordBatch:
        """Return all records added since the previous call."""
        make = self._makers()
        arrays = [make[column]() for column in self._projection.columns]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _makers(self) -> dict[Column, Callable[[], pa.Array]]:
        return {
            Column.KEY: self._keys.array,
            Column.VALUE: self._values.array,
            Column.TOPIC: lambda: _repeated(self._topics, self._counts),
            Column.PARTITION: lambda: pa.array(_spread(self._partitions, self._counts)),
            Column.OFFSET: lambda: pa.array(_joined(self._offsets)),
            Column.TIMESTAMP: lambda: _instants(_joined(self._timestamps)),
            Column.TIMESTAMP_TYPE: lambda: pa.array(_spread(self._timestamp_types, self._counts)),
            Column.HEADERS: lambda: _header_lists(self._headers),
        }


class _Binaries:
    """Collects a binary column from parts, which are lists or arrays."""

    def __init__(self) -> None:
        self._arrays: list[pa.Array] = []
        self._items: list[bytes | None] = []

    def add(self, part: list[bytes | None] | pa.Array) -> None:
        """Add the next part. Lists are joined: an Arrow array for each small list would cost too much."""
        if isinstance(part, list):
            self._items += part
        else:
            self._end_items()
            self._arrays.append(part)

    def array(self) -> pa.Array:
        """Return all parts as one array."""
        self._end_items()
        return pa.concat_arrays(self._arrays) if len(self._arrays) > 1 else self._arrays[0]

    def _end_items(self) -> None:
        if self._items or not self._arrays:
            self._arrays.append(pa.array(self._items, pa.binary()))
            self._items = []


def _columns(
    chunk: FetchedChunk, header: BatchHeader, position: int
) -> RecordColumns | PlainColumns:
    payload = plain_payload(chunk.data, header, position)
    is_dense = header.record_count == header.last_offset_delta + 1 and not header.is_v2
    plain = plain_columns(payload, header.record_count) if is_dense else None
    return columns_of(header, payload) if plain is None else plain


def _offsets(header: BatchHeader, columns: RecordColumns | PlainColumns) -> Integers:
    if isinstance(columns, PlainColumns) or columns.offset_deltas is None:
        first = header.base_offset
        return np.arange(first, first + len(columns.values), dtype=np.int64)
    return np.array(columns.offset_deltas, dtype=np.int64) + header.base_offset


def _timestamps(header: BatchHeader, columns: RecordColumns | PlainColumns) -> Integers:
    count = len(columns.values)
    if header.timestamp_type is TimestampType.APPEND:
        return np.full(count, header.append_time_ms, dtype=np.int64)
    if columns.timestamp_deltas is None:
        return np.full(count, header.base_timestamp_ms, dtype=np.int64)
    return np.array(columns.timestamp_deltas, dtype=np.int64) + header.base_timestamp_ms


def _instants(timestamps_ms: Integers) -> pa.Array:
    return pa.array(timestamps_ms * _US_PER_MS).view(pa.timestamp("us", tz="UTC"))


def _joined(parts: list[Integers]) -> Integers:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _spread(values: Sequence[int], counts: Sequence[int]) -> SmallIntegers:
    return np.repeat(np.array(values, dtype=np.int32), counts)


def _repeated(topics: Sequence[str], counts: Sequence[int]) -> pa.Array:
    if len(set(topics)) == 1:
        return pa.repeat(pa.scalar(topics[0], pa.string()), sum(counts))
    names = sorted(set(topics))
    index = {name: number for number, name in enumerate(names)}
    codes = _spread([index[topic] for topic in topics], counts)
    return pa.array(names, pa.string()).take(pa.array(codes))


def _header_lists(rows: list[Headers | None]) -> pa.Array:
    """Return the headers column. A record without headers has NULL, not an empty list, as in Spark's Kafka source."""
    pairs = [pair for row in rows if row for pair in row]
    lengths = [len(row) if row else 0 for row in rows]
    structs = pa.StructArray.from_arrays(
        [
            pa.array([name for name, _ in pairs], pa.string()),
            pa.array([value for _, value in pairs], pa.binary()),
        ],
        fields=list(ARROW_HEADERS_ITEM.type),
    )
    return pa.ListArray.from_arrays(
        pa.array([0, *accumulate(lengths)], pa.int32()),
        structs,
        type=pa.list_(ARROW_HEADERS_ITEM),
        mask=pa.array([length == 0 for length in lengths], pa.bool_()),
    )
