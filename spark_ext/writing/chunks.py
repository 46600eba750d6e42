"""The rows of a task as encoded batches of a transaction: the same rows make the same batches, byte for byte (pure).

A chunk is what one request writes, under a key: a task that is run again finds what the former attempt wrote, as long
as its rows come in the same order. So all that a request says follows from the rows, the batch, the task, the topic and
the time at which the transaction began: no other clock, no chance.

Records go to the partition that they name, else to that of their key. Those that may go anywhere go to one partition
until a chunk of it is full, and then to the next, so that batches are few.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter
from typing import Protocol, TypeVar

from milena.model.batch.encode import encode_batch
from milena.model.columns import Headers, RecordColumns
from milena.model.types import Codec
from milena.producing.partitioner import key_partition
from milena.records import TopicPartition
from spark_ext.errors import RecordError
from spark_ext.rows.write_schema import RowRun

T = TypeVar("T")

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
    """Records for one partition, in the order of their rows; ``number`` counts the chunks of a task."""

    where: TopicPartition
    number: int
    bytes_max: int
    size: int = 0
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[Headers | None] = field(default_factory=list)
    times_ms: list[int | None] = field(default_factory=list)
    """None: the record says no time of its own."""

    def batch(self, *, codec: Codec, time_ms: int) -> bytes:
        """The records encoded; ``time_ms`` is of those that say none."""
        times = [time_ms if each is None else each for each in self.times_ms]
        base = times[0]
        columns = RecordColumns(
            offset_deltas=None,
            timestamp_deltas=None if times.count(base) == len(times) else [t - base for t in times],
            keys=_unless_none(self.keys),
            values=self.values,
            headers=_unless_none(self.headers),
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
        self._topics: dict[str, _TopicChunks] = {}
        self._count = 0
        self._open_bytes = 0

    def add(self, run: RowRun) -> Iterator[Chunk]:
        """Chunks that are full with these rows.

        Raises:
            RecordError: a row without a topic.
        """
        name = self._topic if run.topic is None else run.topic
        if name is None:
            raise RecordError("a row without a topic; give the option topic, or fill the column")
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _TopicChunks(name, self._shape_of(name), self._seed)
        frame = RECORD_FRAME_BYTES + _size_of(run.headers)
        headers, time_ms = run.headers or None, run.timestamp_ms
        rows = zip(topic.places(run), run.keys or repeat(None), run.values, strict=False)
        for place, key, value in rows:
            partition = topic.turn if place is None else place
            size = frame + len(key or b"") + len(value or b"")
            chunk = topic.open.get(partition)
            if chunk is not None and chunk.size + size > chunk.bytes_max:
                yield self._close(topic, chunk)
                chunk = None
                if place is None:
                    partition = topic.next_turn()
                    chunk = topic.open.get(partition)
            if chunk is None:
                chunk = self._new(topic, partition)
            chunk.size += size
            chunk.keys.append(key)
            chunk.values.append(value)
            chunk.headers.append(headers)
            chunk.times_ms.append(time_ms)
            self._open_bytes += size
            if self._open_bytes > OPEN_BYTES_MAX:
                yield self._close_largest()

    def finish(self) -> Iterator[Chunk]:
        """The rest."""
        for topic in self._topics.values():
            for chunk in [*topic.open.values()]:
                yield self._close(topic, chunk)

    def _new(self, topic: "_TopicChunks", partition: int) -> Chunk:
        number, self._count = self._count, self._count + 1
        chunk = Chunk(TopicPartition(topic.name, partition), number, topic.chunk_bytes_max)
        topic.open[partition] = chunk
        return chunk

    def _close(self, topic: "_TopicChunks", chunk: Chunk) -> Chunk:
        self._open_bytes -= chunk.size
        return topic.open.pop(chunk.where.partition)

    def _close_largest(self) -> Chunk:
        chunks = (chunk for topic in self._topics.values() for chunk in topic.open.values())
        largest = max(chunks, key=attrgetter("size"))
        return self._close(self._topics[largest.where.topic], largest)


class _TopicChunks:
    """Chunks of one topic that have room, by partition, and whose turn it is to get records that may go anywhere."""

    __slots__ = ("chunk_bytes_max", "name", "open", "partition_count", "turn")

    def __init__(self, name: str, shape: TopicShape, seed: int) -> None:
        self.name = name
        self.partition_count = shape.partition_count
        self.chunk_bytes_max = min(CHUNK_BYTES, shape.batch_bytes_max - BATCH_FRAME_BYTES)
        self.turn = seed % shape.partition_count
        self.open: dict[int, Chunk] = {}

    def next_turn(self) -> int:
        """The turn goes on."""
        self.turn = (self.turn + 1) % self.partition_count
        return self.turn

    def places(self, run: RowRun) -> Iterator[int | None]:
        """The partition of each row; None: any."""
        if run.partition is not None or run.keys is None:
            return repeat(run.partition)
        count = self.partition_count
        return (None if key is None else key_partition(key, count) for key in run.keys)


def _unless_none(column: list[T | None]) -> list[T | None] | None:
    """A column that says something."""
    return None if column.count(None) == len(column) else column


def _size_of(headers: Headers | None) -> int:
    return sum(
        RECORD_FRAME_BYTES + len(name.encode()) + len(value or b"") for name, value in headers or ()
    )
