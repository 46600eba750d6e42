"""The rows of a task as requests of a transaction: the same rows make the same requests, byte for byte (pure).

A chunk is what one request writes, under a key: a task that is run again finds what the former attempt wrote, as long
as its rows come in the same order. So all that a request says follows from the rows, the batch, the task and the topic:
no clock, no chance. Records that may go anywhere go to one partition a chunk, so that batches are few, and the next
chunk's to the next partition.
"""

import json
from binascii import b2a_base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat

from milena.model.columns import Headers
from spark_ext.errors import RecordError
from spark_ext.write_schema import RowRun

CHUNK_BYTES = 1 << 20
"""Keys, values and headers of a chunk: enough that a request costs little, and little enough to hold three of."""

RECORD_FRAME_BYTES = 32
"""A record in a batch, without key, value and headers: lengths, and a time. So a chunk has at most 32,768 of them, a
third of what a node takes in one request."""

BATCH_FRAME_BYTES = 1_024
"""A batch without its records."""


@dataclass(frozen=True, slots=True)
class TopicShape:
    """What chunks depend on of a topic. ``batch_bytes_max``: of one stored batch."""

    partition_count: int
    batch_bytes_max: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records for one topic, in the order of their rows.

    ``number`` counts those of a task; ``turn`` is the partition of records that may go anywhere.
    """

    topic: str
    number: int
    turn: int
    items: list[bytes]

    def body(self) -> bytes:
        """A produce request's body, with keys and values as base64."""
        return b'{"records":[%b]}' % b",".join(self.items)


@dataclass(slots=True)
class _Open:
    """A chunk that has room."""

    number: int
    turn: int
    bytes_max: int
    items: list[bytes] = field(default_factory=list)
    size: int = 0


class Chunker:
    """Cuts the rows of one task into chunks: those of a topic follow one another.

    ``seed`` is where the turn of partitions begins, another one for each task and batch; ``shape_of`` finds out about a
    topic when its first row comes.
    """

    def __init__(
        self, *, topic: str | None, seed: int, shape_of: Callable[[str], TopicShape]
    ) -> None:
        self._topic = topic
        self._seed = seed
        self._shape_of = shape_of
        self._shapes: dict[str, TopicShape] = {}
        self._open: dict[str, _Open] = {}
        self._count = 0

    def add(self, run: RowRun) -> Iterator[Chunk]:
        """Chunks that are full with these rows.

        Raises:
            RecordError: a row without a topic.
        """
        topic = self._topic if run.topic is None else run.topic
        if topic is None:
            raise RecordError("a row without a topic; give the option topic, or fill the column")
        frame = RECORD_FRAME_BYTES + _size_of(run.headers)
        tail = _tail(run)
        for key, value in zip(run.keys or repeat(None), run.values, strict=False):
            size = frame + len(key or b"") + len(value or b"")
            found = self._open.get(topic)
            if found is not None and found.size + size > found.bytes_max:
                yield self._close(topic)
                found = None
            if found is None:
                found = self._open[topic] = self._new(topic)
            found.size += size
            found.items.append(
                _item(key, value, found.turn, tail, is_placed=run.partition is not None)
            )

    def finish(self) -> Iterator[Chunk]:
        """The rest."""
        for topic in [*self._open]:
            yield self._close(topic)

    def _new(self, topic: str) -> _Open:
        shape = self._shapes.get(topic)
        if shape is None:
            shape = self._shapes[topic] = self._shape_of(topic)
        number, self._count = self._count, self._count + 1
        return _Open(
            number=number,
            turn=(self._seed + number) % shape.partition_count,
            bytes_max=min(CHUNK_BYTES, shape.batch_bytes_max - BATCH_FRAME_BYTES),
        )

    def _close(self, topic: str) -> Chunk:
        found = self._open.pop(topic)
        return Chunk(topic, found.number, found.turn, found.items)


def _item(
    key: bytes | None, value: bytes | None, turn: int, tail: bytes, *, is_placed: bool
) -> bytes:
    """A record as JSON. Written by hand: base64 needs no escapes, and there are millions of them."""
    head = (
        b'{"value":null' if value is None else b'{"value":"%b"' % b2a_base64(value, newline=False)
    )
    if key is not None:
        return b'%b,"key":"%b"%b' % (head, b2a_base64(key, newline=False), tail)
    return head + tail if is_placed else b'%b,"partition":%d%b' % (head, turn, tail)


def _tail(run: RowRun) -> bytes:
    """What the records of a run have in common."""
    parts = [b""]
    if run.partition is not None:
        parts.append(b'"partition":%d' % run.partition)
    if run.timestamp_ms is not None:
        parts.append(b'"timestamp":%d' % run.timestamp_ms)
    if run.headers:
        parts.append(b'"headers":' + json.dumps(_headers(run.headers)).encode())
    return b",".join(parts) + b"}"


def _headers(headers: Headers) -> list[dict[str, str | None]]:
    return [
        {"key": name, "value": None if value is None else b2a_base64(value, newline=False).decode()}
        for name, value in headers
    ]


def _size_of(headers: Headers | None) -> int:
    return sum(
        RECORD_FRAME_BYTES + len(name.encode()) + len(value or b"") for name, value in headers or ()
    )
