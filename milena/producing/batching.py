"""Which records travel together, and when (pure).

A partition's records gather in its *open batch*. It is sealed when it is full, when the oldest record has waited for
``linger_ms``, when somebody flushes, or when a record comes that names its offset, which travels alone; sealed batches
wait in line as *shipments*, of which one at a time is under way for each partition, for requests of several connections
may overtake each other and sequences must not. A shipment is a batch or, after a refusal for its size, a part of one.

The buffer counts what is not settled yet, whether open, waiting or under way, so that memory is bounded.

The caller holds a lock where threads share it.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from milena.model.batch.header import ProducerStamp
from milena.model.columns import Headers
from milena.producing.deliveries import DeliveryPart
from milena.producing.delivery import RecordBatch
from milena.producing.sequences import LaneSequence

RECORDS_PER_BATCH_MAX = 16_384
"""Up to here nodes and readers unpack a batch in one call."""

RECORD_OVERHEAD_BYTES = 16
"""The most that a record takes in a batch beside its bytes: the value's length 5, the timestamp 9, and a bit."""

KEY_OVERHEAD_BYTES = 5
HEADER_OVERHEAD_BYTES = 11
"""Lengths of name and value, and that of the pair."""


def record_size(key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
    """Bytes that a record takes in a batch before compression, rounded up."""
    size = RECORD_OVERHEAD_BYTES
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key) + KEY_OVERHEAD_BYTES
    if headers is not None:
        size += HEADER_OVERHEAD_BYTES
        for name, content in headers:
            size += len(name.encode()) + len(content or b"") + HEADER_OVERHEAD_BYTES
    return size


@dataclass(slots=True, eq=False)
class Shipment:
    """The records [start, stop) of a batch as one batch of the log.

    ``encoded`` and ``stamp`` stay as they are from the first attempt on: what may be in the log is recognised there by
    them. ``may_be_written`` says that some attempt's result is not known.
    """

    batch: RecordBatch
    start: int
    stop: int
    deadline_ms: float
    encoded: bytes | None = None
    stamp: ProducerStamp | None = None
    may_be_written: bool = False

    @property
    def record_count(self) -> int:
        """At least 1."""
        return self.stop - self.start

    def halves(self) -> tuple["Shipment", "Shipment"]:
        """The same records in two, not yet encoded."""
        assert self.record_count > 1, self.record_count
        middle = (self.start + self.stop) // 2
        return (
            Shipment(self.batch, self.start, middle, self.deadline_ms),
            Shipment(self.batch, middle, self.stop, self.deadline_ms),
        )


class RecordRows:
    """Records for one place, in order; keys, if any has one, sizes and places are as many as values.

    ``places`` are the records' numbers among all that were sent together, ``size_bytes`` is the sum of the sizes.
    """

    __slots__ = ("_ends", "keys", "places", "size_bytes", "sizes", "values")

    def __init__(
        self,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        places: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        self.keys = keys
        self.values = values
        self.places = places
        self.sizes = sizes
        self.size_bytes = sum(sizes)
        self._ends: list[int] | None = None

    def cut(self, start: int, room_bytes: int, count_max: int) -> tuple[int, int]:
        """How far the records from ``start`` on fit, one at least: the first that does not, and the others' size."""
        if start == 0 and self.size_bytes <= room_bytes and len(self.values) <= count_max:
            # Where all go at once nobody needs the sums, which cost as much as all the rest.
            return len(self.values), self.size_bytes
        if self._ends is None:
            self._ends = list(accumulate(self.sizes))
        before = self._ends[start - 1] if start else 0
        stop = bisect_right(self._ends, before + room_bytes, start + 1)
        stop = min(stop, start + count_max)
        return stop, self._ends[stop - 1] - before


class MonotonicClock(Protocol):
    """Clock that tells when a batch was opened."""

    def now_ms(self) -> float:
        """Milliseconds that never run backwards."""


class Lane:
    """One partition: its open batch, what waits in line, and its sequence.

    ``is_busy``: somebody is sending; he looks here again before he stops.
    """

    __slots__ = ("is_busy", "open", "partition", "sequence", "topic", "waiting")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.open: RecordBatch | None = None
        self.waiting: deque[Shipment] = deque()
        self.sequence = LaneSequence()
        self.is_busy = False


class Accumulator:
    """All lanes, and what they hold together.

    Invariants:
        - ``buffered_bytes`` is the size of all batches in ``unsettled``;
        - a lane's batches are sealed, shipped and settled in the order in which they were opened.
    """

    def __init__(
        self, *, batch_bytes: int, linger_ms: float, buffer_bytes: int, delivery_timeout_ms: float
    ) -> None:
        self._batch_bytes = batch_bytes
        self._linger_ms = linger_ms
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._lanes: dict[tuple[str, int], Lane] = {}
        self.buffered_bytes = 0
        self.unsettled: dict[RecordBatch, None] = {}
        """In the order in which they were opened."""

    def lane(self, topic: str, partition: int) -> Lane:
        """The lane of a partition; the same one every time."""
        key = (topic, partition)
        found = self._lanes.get(key)
        if found is None:
            found = self._lanes[key] = Lane(topic, partition)
        return found

    def lanes(self) -> list[Lane]:
        """All of them."""
        return list(self._lanes.values())

    def has_room(self, size_bytes: int) -> bool:
        """Whether a record fits; one always fits into an empty buffer."""
        return self.buffered_bytes + size_bytes <= self._buffer_bytes or not self.buffered_bytes

    def has_open(self, lane: Lane, size_bytes: int) -> bool:
        """The lane has an open batch, with room for a record of this size."""
        batch = lane.open
        return (
            batch is not None
            and batch.size_bytes + size_bytes <= self._batch_bytes
            and batch.record_count < RECORDS_PER_BATCH_MAX
        )

    def add_to_open(
        self,
        lane: Lane,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        size_bytes: int,
    ) -> tuple[RecordBatch, int] | None:
        """What most records need, in one call: a place in the open batch, which is not full by it.

        None, and nothing is changed, where there is no such place: then ``has_room`` and ``add`` have their say.
        """
        batch = lane.open
        if (
            batch is None
            or batch.size_bytes + size_bytes + RECORD_OVERHEAD_BYTES >= self._batch_bytes
            or self.buffered_bytes + size_bytes > self._buffer_bytes
            or batch.record_count >= RECORDS_PER_BATCH_MAX
        ):
            return None
        self.buffered_bytes += size_bytes
        return batch, batch.add(key, value, headers, timestamp_ms, size_bytes)

    def add(
        self,
        lane: Lane,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        size_bytes: int,
        clock: MonotonicClock,
    ) -> tuple[RecordBatch, int, bool]:
        """Put a record into the lane's open batch; its batch, its number there, and whether to look at the lane now.

        That is when the batch was opened by it, and must be timed, or filled by it. The clock is read then only.
        """
        batch = lane.open
        if batch is None or not self.has_open(lane, size_bytes):
            batch = self._open(lane, clock)
        number = batch.add(key, value, headers, timestamp_ms, size_bytes)
        self.buffered_bytes += size_bytes
        return batch, number, self._is_due(lane, batch, number)

    def add_many(
        self,
        lane: Lane,
        rows: RecordRows,
        start: int,
        headers: Headers | None,
        timestamp_ms: int,
        clock: MonotonicClock,
    ) -> tuple[DeliveryPart, bool]:
        """Put records from ``start`` on into the lane's open batch, as many as go in, one at least; as ``add``."""
        batch = lane.open
        if batch is None or not self.has_open(lane, rows.sizes[start]):
            batch = self._open(lane, clock)
        stop, size_bytes = rows.cut(
            start, self._batch_bytes - batch.size_bytes, RECORDS_PER_BATCH_MAX - batch.record_count
        )
        keys = None if rows.keys is None else rows.keys[start:stop]
        first = batch.extend(keys, rows.values[start:stop], headers, timestamp_ms, size_bytes)
        self.buffered_bytes += size_bytes
        return DeliveryPart(batch, first, rows.places[start:stop]), self._is_due(lane, batch, first)

    def _open(self, lane: Lane, clock: MonotonicClock, if_match: int | None = None) -> RecordBatch:
        self.seal(lane)
        batch = RecordBatch(lane.topic, lane.partition, opened_ms=clock.now_ms(), if_match=if_match)
        lane.open = batch
        self.unsettled[batch] = None
        return batch

    def _is_due(self, lane: Lane, batch: RecordBatch, first: int) -> bool:
        """Whether to look at the lane after records from this number on; a full batch is sealed."""
        if batch.size_bytes + RECORD_OVERHEAD_BYTES >= self._batch_bytes:
            self.seal(lane)
            return True
        return first == 0

    def add_alone(
        self,
        lane: Lane,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        size_bytes: int,
        clock: MonotonicClock,
        if_match: int,
    ) -> RecordBatch:
        """Put a record that is to be at this offset into a batch of its own, in line behind what is open."""
        batch = self._open(lane, clock, if_match)
        batch.add(key, value, headers, timestamp_ms, size_bytes)
        self.buffered_bytes += size_bytes
        self.seal(lane)
        return batch

    def seal(self, lane: Lane) -> None:
        """The open batch takes no more records and gets in line."""
        batch, lane.open = lane.open, None
        if batch is not None:
            deadline_ms = batch.opened_ms + self._delivery_timeout_ms
            lane.waiting.append(Shipment(batch, 0, batch.record_count, deadline_ms))

    def seal_all(self) -> list[Lane]:
        """Seal every open batch; the lanes that have something to send."""
        for lane in self._lanes.values():
            self.seal(lane)
        return [lane for lane in self._lanes.values() if lane.waiting]

    def due_ms(self, lane: Lane) -> float | None:
        """When the lane's open batch has waited long enough; None without one."""
        return None if lane.open is None else lane.open.opened_ms + self._linger_ms

    def is_ready(self, lane: Lane, now_ms: float) -> bool:
        """The lane has something to send now."""
        due_ms = self.due_ms(lane)
        return bool(lane.waiting) or (due_ms is not None and due_ms <= now_ms)

    def take(self, lane: Lane, now_ms: float) -> Shipment | None:
        """Shipment to send next on this lane, None if that can wait."""
        if not self.is_ready(lane, now_ms):
            return None
        if not lane.waiting:
            self.seal(lane)
        return lane.waiting.popleft()

    def put_back(self, lane: Lane, *shipments: Shipment) -> None:
        """These are the next to send, before all others."""
        lane.waiting.extendleft(reversed(shipments))

    def settled(self, batch: RecordBatch) -> None:
        """The batch has all its outcomes; its room is free."""
        if batch in self.unsettled:
            del self.unsettled[batch]
            self.buffered_bytes -= batch.size_bytes
