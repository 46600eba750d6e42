"""Encode the rows of a task as batches of a transaction (pure). The same rows make the same batches, byte for byte.

One request writes one chunk, under an idempotency key. A task that runs again sends the same chunks under the same
keys, if its rows arrive in the same order, so nothing is written twice. Therefore a request depends only on the rows,
the batch, the task, the topic, and the time at which the transaction began. It does not depend on another clock, on
chance, or on how Spark cuts the rows into Arrow batches.

A record goes to the partition that it names, else to the partition of its key. Records with neither fill a chunk of
one partition, then a chunk of the next one, so that batches are few. A lane fills the chunks of one partition, or of
the records with neither, one after the other. Rows are sorted into lanes by numpy, one block at a time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, repeat
from operator import attrgetter
from typing import Protocol

import numpy as np
import pyarrow as pa

from milena.model.batch.encode import encode_batch, encode_payload
from milena.model.columns import Headers, RecordColumns
from milena.model.types import Codec
from milena.records import TopicPartition
from spark_ext.errors import RecordError
from spark_ext.rows.blocks import Integers, RowBlock, items_of
from spark_ext.rows.key_hashes import NO_KEY, positive_hashes
from spark_ext.rows.payloads import packed_payload

ANYWHERE = -1 << 31
"""A value instead of a partition number: the record names no partition and has no key."""

CHUNK_BYTES = 1 << 20
"""The size of a chunk, in bytes of keys, values, headers and record frames: large enough to make a request cheap."""

OPEN_BYTES_MAX = 16 << 20
"""The most bytes of all unfinished chunks. Above this, the largest chunk is sent before it is full.

With fewer than 16 partitions, chunks become full before they reach this sum.
"""

RECORD_FRAME_BYTES = 32
"""Bytes of a record in a batch without its key, value and headers: the lengths and the time."""

BATCH_FRAME_BYTES = 1_024
"""Bytes of a batch without its records."""


@dataclass(frozen=True, slots=True)
class TopicShape:
    """The properties of a topic that its chunks depend on. ``batch_bytes_max`` limits one stored batch."""

    partition_count: int
    batch_bytes_max: int


class FindShape(Protocol):
    """A function that finds the shape of a topic."""

    def __call__(self, topic: str) -> TopicShape:
        """Return the shape of a topic; raises the cluster's error if there is no such topic."""


@dataclass(slots=True)
class Chunk:
    """Records for one partition, in row order. Its ``key`` is unique among the task's chunks for the partition."""

    where: TopicPartition
    key: str
    bytes_max: int
    size: int = 0
    records: int = 0
    keys: list[pa.Array] = field(default_factory=list)
    values: list[pa.Array] = field(default_factory=list)
    """One array for each block that gave rows to the chunk. ``keys`` is empty if the rows have no such column."""
    headers: list[Headers | None] = field(default_factory=list)
    times_ms: list[int | None] = field(default_factory=list)
    """Times in ms; None for a record without a time. Empty, like ``headers``, if the rows have no such column."""

    def add(self, block: RowBlock, rows: Integers, size: int) -> None:
        """Add some rows of a block, which have ``size`` bytes together."""
        self.size += size
        self.records += len(rows)
        places = pa.array(rows)
        # Copy the rows: a slice of one row would keep the whole block in memory.
        self.values.append(block.values.take(places))
        if block.keys is not None:
            self.keys.append(block.keys.take(places))
        if block.headers is not None:
            self.headers += map(block.headers.__getitem__, rows.tolist())
        if block.times_ms is not None:
            self.times_ms += map(block.times_ms.__getitem__, rows.tolist())

    def batch(self, *, codec: Codec, time_ms: int) -> bytes:
        """Return the records as an encoded batch. ``time_ms`` is the time of records without a time."""
        times = [time_ms if each is None else each for each in self.times_ms] or [time_ms]
        base = times[0]
        deltas = None if times.count(base) == len(times) else [each - base for each in times]
        keys = pa.concat_arrays(self.keys) if self.keys else None
        values = pa.concat_arrays(self.values)
        # Without headers, numpy builds the payload from Arrow's buffers; record by record, Python would take longer.
        # Both encodings are the same, byte for byte (``test_a_batch_is_byte_for_byte_what_its_lists_make``).
        if self.headers.count(None) == len(self.headers):
            return encode_payload(
                packed_payload(deltas, keys, values),
                record_count=self.records,
                base_timestamp_ms=base,
                latest_timestamp_ms=max(times),
                codec=codec,
            )
        columns = RecordColumns(
            offset_deltas=None,
            timestamp_deltas=deltas,
            keys=None if keys is None or keys.null_count == len(keys) else items_of(keys),
            values=items_of(values),
            headers=self.headers,
        )
        return encode_batch(columns, base_timestamp_ms=base, codec=codec)


class Chunker:
    """Cuts the rows of one task into chunks.

    ``seed`` is the partition at which records without a key and partition start. It differs between tasks and batches,
    so that they do not all start at the same partition. ``shape_of`` is called for a topic at its first row.
    """

    def __init__(self, *, topic: str | None, seed: int, shape_of: FindShape) -> None:
        self._topic = topic
        self._seed = seed
        self._shape_of = shape_of
        self._topics: dict[str, _TopicLanes] = {}
        self._open_bytes = 0

    def add(self, block: RowBlock) -> Iterator[Chunk]:
        """Add the rows of a block; yield the chunks that are full.

        Raises:
            RecordError: a row without a topic.
        """
        sizes = block.sizes + RECORD_FRAME_BYTES
        ends = np.cumsum(sizes)
        # Sort the whole block at once: per row, Python would cost more than the encoding.
        lanes = [*self._sorted(block)]
        row = 0
        while row < len(sizes):
            # Take as many rows as fit even if no chunk becomes full meanwhile; at least one. The cuts lie at bytes of
            # rows, not at the ends of Spark's Arrow batches, so a repeated task cuts the same chunks.
            room = OPEN_BYTES_MAX - self._open_bytes + (int(ends[row - 1]) if row else 0)
            stop = max(row + 1, int(np.searchsorted(ends, room, side="right")))
            for lane, rows in lanes:
                first, last = np.searchsorted(rows, (row, stop)).tolist()
                yield from self._fill(lane, block, rows[first:last], sizes)
            # Close the largest lane, not the oldest: that makes the fewest small batches.
            if self._open_bytes > OPEN_BYTES_MAX:
                yield self._close(self._largest())
            row = stop

    def finish(self) -> Iterator[Chunk]:
        """Yield the unfinished chunks."""
        for lane in self._lanes():
            if lane.chunk is not None:
                yield self._close(lane)

    def _sorted(self, block: RowBlock) -> Iterator[tuple["_Lane", Integers]]:
        """Yield each lane with its rows, in row order."""
        for name, rows in self._by_topic(block):
            topic = self._topics.get(name)
            if topic is None:
                topic = self._topics[name] = _TopicLanes(name, self._shape_of(name), self._seed)
            places = topic.places(block)[rows]
            # Stable: records of a partition must keep the order of their rows.
            order = np.argsort(places, kind="stable")
            found, firsts = np.unique(places[order], return_index=True)
            for place, mine in zip(found.tolist(), np.split(order, firsts[1:]), strict=True):
                yield topic.lane(place), rows[mine]

    def _by_topic(self, block: RowBlock) -> Iterable[tuple[str, Integers]]:
        if block.topics is None and self._topic is not None:
            return [(self._topic, np.arange(len(block.values)))]
        found: dict[str, list[int]] = {}
        for row, name in enumerate(block.topics or repeat(None, len(block.values))):
            if name is None:
                raise RecordError(
                    "a row without a topic; give the option topic, or fill the column"
                )
            found.setdefault(name, []).append(row)
        return [(name, np.array(rows)) for name, rows in found.items()]

    def _fill(
        self, lane: "_Lane", block: RowBlock, rows: Integers, sizes: Integers
    ) -> Iterator[Chunk]:
        ends = np.cumsum(sizes[rows])
        row, taken = 0, 0
        while row < len(rows):
            chunk = lane.chunk or lane.begin()
            stop = int(np.searchsorted(ends, taken + chunk.bytes_max - chunk.size, side="right"))
            if stop <= row and chunk.size:
                yield self._close(lane)
                continue
            # A record that is too large for a chunk gets its own. The cluster decides whether it is too large.
            stop = max(stop, row + 1)
            size = int(ends[stop - 1]) - taken
            chunk.add(block, rows[row:stop], size)
            self._open_bytes += size
            row, taken = stop, taken + size

    def _close(self, lane: "_Lane") -> Chunk:
        chunk = lane.end()
        self._open_bytes -= chunk.size
        return chunk

    def _lanes(self) -> Iterator["_Lane"]:
        for topic in self._topics.values():
            yield from topic.lanes

    def _largest(self) -> "_Lane":
        """Return the lane with the largest chunk; ``rank`` breaks ties independently of the lanes' creation order."""
        return max(
            (lane for lane in self._lanes() if lane.chunk is not None), key=attrgetter("rank")
        )


class _Lane:
    """Fills the chunks of one partition, or of all partitions in turn. ``turns`` is an endless iterator of them."""

    __slots__ = ("_bytes_max", "_count", "_prefix", "_topic", "_turns", "chunk")

    def __init__(self, topic: str, prefix: str, turns: Iterator[int], bytes_max: int) -> None:
        self._topic = topic
        self._prefix = prefix
        self._turns = turns
        self._bytes_max = bytes_max
        self._count = 0
        self.chunk: Chunk | None = None

    @property
    def rank(self) -> tuple[int, TopicPartition, str]:
        """Return the lane's rank: higher for a larger chunk, and unique among lanes."""
        assert self.chunk is not None, "asked of those that have one"
        return self.chunk.size, self.chunk.where, self.chunk.key

    def begin(self) -> Chunk:
        """Start the next chunk and return it."""
        where = TopicPartition(self._topic, next(self._turns))
        self.chunk = Chunk(where, f"{self._prefix}{self._count}", self._bytes_max)
        self._count += 1
        return self.chunk

    def end(self) -> Chunk:
        """End the current chunk, which is full or the last one, and return it."""
        chunk, self.chunk = self.chunk, None
        assert chunk is not None, "it has started"
        return chunk


class _TopicLanes:
    """The lanes of one topic: one per partition that rows name or have keys for, and one for all other rows."""

    def __init__(self, name: str, shape: TopicShape, seed: int) -> None:
        self._name = name
        self._partition_count = shape.partition_count
        # A chunk is one batch, and the cluster refuses a batch above the topic's ``max.message.bytes``. The sizes are
        # those before compression, so a chunk fits even if its records do not compress.
        self._bytes_max = min(CHUNK_BYTES, shape.batch_bytes_max - BATCH_FRAME_BYTES)
        self._seed = seed
        self._lanes: dict[int, _Lane] = {}

    @property
    def lanes(self) -> Iterable[_Lane]:
        """Return all lanes that have been created."""
        return self._lanes.values()

    def lane(self, place: int) -> _Lane:
        """Return the lane of a partition, or the lane of ``ANYWHERE``."""
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = self._new(place)
        return lane

    def _new(self, place: int) -> _Lane:
        if place != ANYWHERE:
            # The prefix keeps keys apart: this lane and the ``ANYWHERE`` lane may both write to the partition.
            return _Lane(self._name, "", repeat(place), self._bytes_max)
        turns = (turn % self._partition_count for turn in count(self._seed))
        return _Lane(self._name, "any-", turns, self._bytes_max)

    def places(self, block: RowBlock) -> Integers:
        """Return the partition of each row, or ``ANYWHERE``."""
        places = np.full(len(block.values), ANYWHERE)
        if block.keys is not None:
            hashes = positive_hashes(block.keys)
            places = np.where(hashes == NO_KEY, ANYWHERE, hashes % self._partition_count)
        if block.partitions is not None:
            named = (ANYWHERE if each is None else each for each in block.partitions)
            given = np.fromiter(named, np.int64, len(places))
            places = np.where(given == ANYWHERE, places, given)
        return places
