"""The rows of a task as encoded batches of a transaction: the same rows make the same batches, byte for byte (pure).

A chunk is what one request writes, under a key: a task that is run again finds what the former attempt wrote, as long
as its rows come in the same order. So all that a request says follows from the rows, the batch, the task, the topic and
the time at which the transaction began: no other clock, no chance, and not how Spark cuts the rows into Arrow batches.

Records go to the partition that they name, else to that of their key. Those that may go anywhere go to one partition
until a chunk of it is full, and then to the next, so that batches are few. Each of these is a lane, which fills one
chunk after the other; rows are sorted into lanes a block at a time, by numpy.
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
"""In place of a partition: the record may go to any."""

CHUNK_BYTES = 1 << 20
"""Keys, values and headers of a chunk: enough that a request costs little."""

OPEN_BYTES_MAX = 16 << 20
"""Of all chunks that have room: above it the largest is sent as it is. With fewer partitions than 16 none ever is."""

RECORD_FRAME_BYTES = 32
"""A record in a batch, without key, value and headers: lengths, and a time."""

BATCH_FRAME_BYTES = 1_024
"""A batch without its records."""


@dataclass(frozen=True, slots=True)
class TopicShape:
    """What chunks depend on of a topic. ``batch_bytes_max``: of one stored batch."""

    partition_count: int
    batch_bytes_max: int


class FindShape(Protocol):
    """Finds out about a topic."""

    def __call__(self, topic: str) -> TopicShape:
        """Raises what the cluster says, where there is no such topic."""


@dataclass(slots=True)
class Chunk:
    """Records for one partition, in the order of their rows. No other chunk of a task for it has the same ``key``."""

    where: TopicPartition
    key: str
    bytes_max: int
    size: int = 0
    records: int = 0
    keys: list[pa.Array] = field(default_factory=list)
    values: list[pa.Array] = field(default_factory=list)
    """Of each block that it has rows of, one; of ``keys`` none where rows have no such column."""
    headers: list[Headers | None] = field(default_factory=list)
    times_ms: list[int | None] = field(default_factory=list)
    """None: the record says no time of its own. Empty, as ``headers``, where rows have no such column."""

    def add(self, block: RowBlock, rows: Integers, size: int) -> None:
        """Take some rows of a block, which are so large together."""
        self.size += size
        self.records += len(rows)
        places = pa.array(rows)
        # Copies: the block would be kept alive by a row.
        self.values.append(block.values.take(places))
        if block.keys is not None:
            self.keys.append(block.keys.take(places))
        if block.headers is not None:
            self.headers += map(block.headers.__getitem__, rows.tolist())
        if block.times_ms is not None:
            self.times_ms += map(block.times_ms.__getitem__, rows.tolist())

    def batch(self, *, codec: Codec, time_ms: int) -> bytes:
        """The records encoded; ``time_ms`` is of those that say none."""
        times = [time_ms if each is None else each for each in self.times_ms] or [time_ms]
        base = times[0]
        deltas = None if times.count(base) == len(times) else [each - base for each in times]
        keys = pa.concat_arrays(self.keys) if self.keys else None
        values = pa.concat_arrays(self.values)
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

    ``seed`` is where the turn of partitions begins, another one for each task and batch; ``shape_of`` is asked about a
    topic when its first row comes.
    """

    def __init__(self, *, topic: str | None, seed: int, shape_of: FindShape) -> None:
        self._topic = topic
        self._seed = seed
        self._shape_of = shape_of
        self._topics: dict[str, _TopicLanes] = {}
        self._open_bytes = 0

    def add(self, block: RowBlock) -> Iterator[Chunk]:
        """Chunks that are full with these rows.

        Raises:
            RecordError: a row without a topic.
        """
        sizes = block.sizes + RECORD_FRAME_BYTES
        ends = np.cumsum(sizes)
        lanes = [*self._sorted(block)]
        row = 0
        while row < len(sizes):
            # As many rows as fit whatever becomes full on the way; at least one.
            room = OPEN_BYTES_MAX - self._open_bytes + (int(ends[row - 1]) if row else 0)
            stop = max(row + 1, int(np.searchsorted(ends, room, side="right")))
            for lane, rows in lanes:
                first, last = np.searchsorted(rows, (row, stop)).tolist()
                yield from self._fill(lane, block, rows[first:last], sizes)
            if self._open_bytes > OPEN_BYTES_MAX:
                yield self._close(self._largest())
            row = stop

    def finish(self) -> Iterator[Chunk]:
        """The rest."""
        for lane in self._lanes():
            if lane.chunk is not None:
                yield self._close(lane)

    def _sorted(self, block: RowBlock) -> Iterator[tuple["_Lane", Integers]]:
        """The rows of each lane, in their order."""
        for name, rows in self._by_topic(block):
            topic = self._topics.get(name)
            if topic is None:
                topic = self._topics[name] = _TopicLanes(name, self._shape_of(name), self._seed)
            places = topic.places(block)[rows]
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
            # A record that is too large for a chunk is one of its own.
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
        """The lane with the largest chunk; of several the same one, in whatever order they came to be."""
        return max(
            (lane for lane in self._lanes() if lane.chunk is not None), key=attrgetter("rank")
        )


class _Lane:
    """Fills chunks of one partition, or of all in turns, which ``turns`` gives without end."""

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
        """The larger its chunk is, the higher; no two lanes have the same."""
        assert self.chunk is not None, "asked of those that have one"
        return self.chunk.size, self.chunk.where, self.chunk.key

    def begin(self) -> Chunk:
        """The next chunk."""
        where = TopicPartition(self._topic, next(self._turns))
        self.chunk = Chunk(where, f"{self._prefix}{self._count}", self._bytes_max)
        self._count += 1
        return self.chunk

    def end(self) -> Chunk:
        """It is full, or the last."""
        chunk, self.chunk = self.chunk, None
        assert chunk is not None, "it has begun"
        return chunk


class _TopicLanes:
    """Lanes of one topic: of each partition that rows name or have keys for, and of those that may go anywhere."""

    def __init__(self, name: str, shape: TopicShape, seed: int) -> None:
        self._name = name
        self._partition_count = shape.partition_count
        self._bytes_max = min(CHUNK_BYTES, shape.batch_bytes_max - BATCH_FRAME_BYTES)
        self._seed = seed
        self._lanes: dict[int, _Lane] = {}

    @property
    def lanes(self) -> Iterable[_Lane]:
        """All that there are."""
        return self._lanes.values()

    def lane(self, place: int) -> _Lane:
        """The lane of a partition, or that of ``ANYWHERE``."""
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = self._new(place)
        return lane

    def _new(self, place: int) -> _Lane:
        if place != ANYWHERE:
            return _Lane(self._name, "", repeat(place), self._bytes_max)
        turns = (turn % self._partition_count for turn in count(self._seed))
        return _Lane(self._name, "any-", turns, self._bytes_max)

    def places(self, block: RowBlock) -> Integers:
        """The partition of each row, or ``ANYWHERE``."""
        places = np.full(len(block.values), ANYWHERE)
        if block.keys is not None:
            hashes = positive_hashes(block.keys)
            places = np.where(hashes == NO_KEY, ANYWHERE, hashes % self._partition_count)
        if block.partitions is not None:
            named = (ANYWHERE if each is None else each for each in block.partitions)
            given = np.fromiter(named, np.int64, len(places))
            places = np.where(given == ANYWHERE, places, given)
        return places
