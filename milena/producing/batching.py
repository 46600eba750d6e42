"""Decide which records go into one batch, and when a batch is sent (pure).

Each partition has a *lane*: its open batch, and the batches that wait to be sent. New records go into the *open batch*.
The batch is sealed when one of these holds:

- it is full;
- its oldest record has waited for ``linger_ms``;
- the program flushes;
- a record with ``if_match`` arrives. Such a record gets a batch for itself.

Sealed batches wait as *shipments*. A shipment is a batch, or a part of a batch that a node refused for its size. Each
partition has at most one shipment in flight. If it had two, on two connections, the second could arrive first, and the
log would refuse its sequence number.

The buffer counts all records that are neither written nor failed: in open batches, waiting or in flight. Its limit
bounds the memory. If threads share an accumulator, the caller holds a lock.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from milena.model.batch.header import ProducerStamp
from milena.model.clock import Clock
from milena.model.columns import Headers
from milena.producing.deliveries import DeliveryPart
from milena.producing.delivery import RecordBatch
from milena.producing.sequences import LaneSequence

RECORDS_PER_BATCH_MAX = 16_384
"""The most records in a batch. Nodes and readers unpack a batch of this size in one call."""

RECORD_OVERHEAD_BYTES = 16
"""The most bytes that a record takes in a batch besides its content: value length 5, timestamp 9, and up to 2 more."""

KEY_OVERHEAD_BYTES = 5
HEADER_OVERHEAD_BYTES = 11
"""The most bytes that a header takes besides name and value: two lengths, and the start of the pair."""


def record_size(key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
    """Return the bytes that a record takes in a batch before compression, rounded up."""
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
    """The records [start, stop) of a batch, which are sent in one request.

    ``encoded`` and ``stamp`` stay the same in all attempts, because the log recognises a retry by them. They change
    only if the shipment gets a new producer id (``sender``: renew). ``may_be_written`` is True if the result of an
    attempt is unknown.
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
        """The number of records; at least 1."""
        return self.stop - self.start

    def halves(self) -> tuple["Shipment", "Shipment"]:
        """Return two shipments with half of the records each, not yet encoded."""
        assert self.record_count > 1, self.record_count
        middle = (self.start + self.stop) // 2
        return (
            Shipment(self.batch, self.start, middle, self.deadline_ms),
            Shipment(self.batch, middle, self.stop, self.deadline_ms),
        )


class RecordRows:
    """Records of one ``send_many`` call that go to the same partition, as columns of equal length.

    ``places`` are the indexes of the records in the values of the call. ``keys`` is None if no record has a key.
    ``size_bytes`` is the sum of ``sizes``.
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
        """Return the end (exclusive) of the records from ``start`` on that fit into ``room_bytes``, and their size.

        At least one record counts as fitting, even if it is larger.
        """
        if start == 0 and self.size_bytes <= room_bytes and len(self.values) <= count_max:
            # All records fit, so the running sums are not needed. Computing them would double the cost.
            return len(self.values), self.size_bytes
        if self._ends is None:
            self._ends = list(accumulate(self.sizes))
        before = self._ends[start - 1] if start else 0
        stop = bisect_right(self._ends, before + room_bytes, start + 1)
        stop = min(stop, start + count_max)
        return stop, self._ends[stop - 1] - before


class Lane:
    """The sending state of one partition: its open batch, its waiting shipments, and its sequence.

    While ``is_busy``, a task sends the lane's shipments. Before it stops, it looks for new ones.
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
    """All lanes, and the records that they hold together.

    Invariants:
        - ``buffered_bytes`` is the size of all batches in ``unsettled``;
        - a lane's batches are sealed, shipped and settled in the order in which they were opened.
    """

    def __init__(
        self,
        *,
        batch_bytes: int,
        linger_ms: float,
        buffer_bytes: int,
        delivery_timeout_ms: float,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._batch_bytes = batch_bytes
        self._linger_ms = linger_ms
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._lanes: dict[tuple[str, int], Lane] = {}
        self.buffered_bytes = 0
        self.unsettled: dict[RecordBatch, None] = {}
        """Batches without an outcome, in the order in which they were opened."""

    def lane(self, topic: str, partition: int) -> Lane:
        """Return the lane of a partition. All calls return the same object."""
        key = (topic, partition)
        found = self._lanes.get(key)
        if found is None:
            found = self._lanes[key] = Lane(topic, partition)
        return found

    def lanes(self) -> list[Lane]:
        """Return all lanes."""
        return list(self._lanes.values())

    def has_room(self, size_bytes: int) -> bool:
        """Return whether a record of this size fits. An empty buffer takes any record."""
        return self.buffered_bytes + size_bytes <= self._buffer_bytes or not self.buffered_bytes

    def has_open(self, lane: Lane, size_bytes: int) -> bool:
        """Return whether the lane has an open batch with room for a record of this size."""
        batch = lane.open
        return (
            batch is not None
            and batch.size_bytes + size_bytes <= self._batch_bytes
            and batch.record_count < RECORDS_PER_BATCH_MAX
        )

    def add_to_open(  # noqa: PLR0917 - a call per record: keywords cost time
        self,
        lane: Lane,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        size_bytes: int,
    ) -> tuple[RecordBatch, int] | None:
        """Add a record to the open batch if that does not fill the batch; return the batch and the record's number.

        Otherwise change nothing and return None; the caller then uses ``has_room`` and ``add``. Most records take this
        path, so it is one call.
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

    def add(  # noqa: PLR0917 - a call per record: keywords cost time
        self,
        lane: Lane,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        size_bytes: int,
    ) -> tuple[RecordBatch, int, bool]:
        """Put a record into the lane's open batch; return the batch, its number there, and whether the lane is due.

        The lane is due if the record opened the batch, which must then be timed, or filled it. The clock is read only
        when a batch is opened.
        """
        batch = lane.open
        if batch is None or not self.has_open(lane, size_bytes):
            batch = self._open(lane)
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
    ) -> tuple[DeliveryPart, bool]:
        """Put as many records from ``start`` on into the lane's open batch as fit, at least one.

        Return where the records are, and whether the lane is due (see ``add``).
        """
        batch = lane.open
        if batch is None or not self.has_open(lane, rows.sizes[start]):
            batch = self._open(lane)
        stop, size_bytes = rows.cut(
            start, self._batch_bytes - batch.size_bytes, RECORDS_PER_BATCH_MAX - batch.record_count
        )
        keys = None if rows.keys is None else rows.keys[start:stop]
        first = batch.extend(keys, rows.values[start:stop], headers, timestamp_ms, size_bytes)
        self.buffered_bytes += size_bytes
        return DeliveryPart(batch, first, rows.places[start:stop]), self._is_due(lane, batch, first)

    def _open(self, lane: Lane, if_match: int | None = None) -> RecordBatch:
        self.seal(lane)
        batch = RecordBatch(
            lane.topic, lane.partition, opened_ms=self._clock.now_ms(), if_match=if_match
        )
        lane.open = batch
        self.unsettled[batch] = None
        return batch

    def _is_due(self, lane: Lane, batch: RecordBatch, first: int) -> bool:
        """Seal the batch if it is full; return whether the lane is due, because the batch was sealed or just opened.

        ``first`` is the number of the first added record in the batch.
        """
        if batch.size_bytes + RECORD_OVERHEAD_BYTES >= self._batch_bytes:
            self.seal(lane)
            return True
        return first == 0

    def add_alone(  # noqa: PLR0917 - a call per record: keywords cost time
        self,
        lane: Lane,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        size_bytes: int,
        if_match: int,
    ) -> RecordBatch:
        """Put a record that must get the offset ``if_match`` into a new batch, to be sent after the open batch."""
        batch = self._open(lane, if_match)
        batch.add(key, value, headers, timestamp_ms, size_bytes)
        self.buffered_bytes += size_bytes
        self.seal(lane)
        return batch

    def seal(self, lane: Lane) -> None:
        """Close the open batch for more records, and add it to the waiting shipments."""
        batch, lane.open = lane.open, None
        if batch is not None:
            deadline_ms = batch.opened_ms + self._delivery_timeout_ms
            lane.waiting.append(Shipment(batch, 0, batch.record_count, deadline_ms))

    def seal_all(self) -> list[Lane]:
        """Seal every open batch; return the lanes that have something to send."""
        for lane in self._lanes.values():
            self.seal(lane)
        return [lane for lane in self._lanes.values() if lane.waiting]

    def due_ms(self, lane: Lane) -> float | None:
        """Return when the open batch has waited long enough, in monotonic ms; None without an open batch."""
        return None if lane.open is None else lane.open.opened_ms + self._linger_ms

    def is_ready(self, lane: Lane, now_ms: float) -> bool:
        """Return whether the lane has something to send now."""
        due_ms = self.due_ms(lane)
        return bool(lane.waiting) or (due_ms is not None and due_ms <= now_ms)

    def take(self, lane: Lane, now_ms: float) -> Shipment | None:
        """Take the shipment to send next on this lane; None if nothing has to be sent yet."""
        if not self.is_ready(lane, now_ms):
            return None
        if not lane.waiting:
            self.seal(lane)
        return lane.waiting.popleft()

    def put_back(self, lane: Lane, *shipments: Shipment) -> None:
        """Put these shipments before all waiting ones, in this order."""
        lane.waiting.extendleft(reversed(shipments))

    def settled(self, batch: RecordBatch) -> None:
        """Free the batch's bytes in the buffer, because all its records are written or failed."""
        if batch in self.unsettled:
            del self.unsettled[batch]
            self.buffered_bytes -= batch.size_bytes
