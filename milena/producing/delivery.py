"""A batch of records with their outcomes, and ``Delivery``, the handle of one record.

A handle has the batch and the record's number in it, and looks up the outcome there. So a record that no task awaits
costs only its handle. An error that the program does not read is dropped without a log line.

Threads: records are added under the producer's lock. Only the loop's thread sets outcomes. Any thread may wait. A
waiter first adds itself to ``waiters`` and then reads ``is_settled``. ``settle`` first sets the outcome and then wakes
``waiters``. So each waiter is woken or sees the outcome, without a lock.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

from milena.errors import ClientError
from milena.model.columns import Headers, RecordColumns
from milena.records import Receipt

DeliveryCallback = Callable[[Receipt | None, ClientError | None], None]
"""A function that is called with the receipt or the error, on the loop's thread. It must not block."""


class DeliveryOutcome(NamedTuple):
    """The outcome of the records from number ``first`` on: an error, or written from ``base_offset`` on.

    ``base_offset`` is None if the offsets are not known (``acks=0``).
    """

    first: int
    base_offset: int | None
    error: ClientError | None


class RecordBatch:
    """Records of one partition that are sent together.

    Invariants:
        - keys and headers are as long as ``values``, or None if no record has any;
        - records ``_time_starts[i]`` to ``_time_starts[i + 1]`` (exclusive) have the timestamp ``_timestamps[i]``;
        - once the batch is settled, the outcomes cover all records, and ascend by ``first``.
    """

    __slots__ = (
        "_headers",
        "_keys",
        "_outcomes",
        "_time_starts",
        "_timestamps",
        "_unsettled",
        "_values",
        "callbacks",
        "if_match",
        "opened_ms",
        "partition",
        "record_count",
        "size_bytes",
        "topic",
        "waiters",
    )

    def __init__(
        self, topic: str, partition: int, *, opened_ms: float, if_match: int | None = None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.if_match = if_match
        """The record is written only if this is the partition's next offset. None: no condition.

        Only a batch of one record has a condition.
        """
        self.opened_ms = opened_ms
        self.size_bytes = 0
        self.record_count = 0
        self.callbacks: list[tuple[int, DeliveryCallback]] | None = None
        self.waiters: list[Callable[[], None]] = []
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] | None = None
        self._headers: list[Headers | None] | None = None
        self._timestamps: list[int] = []
        self._time_starts: list[int] = []
        self._outcomes: list[DeliveryOutcome] = []
        self._unsettled = 0

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        size_bytes: int,
    ) -> int:
        """Append a record; return its number in the batch."""
        number = self.record_count
        if key is not None and self._keys is None:
            self._keys = [None] * number
        if headers is not None and self._headers is None:
            self._headers = [None] * number
        if self._keys is not None:
            self._keys.append(key)
        if self._headers is not None:
            self._headers.append(headers)
        self._values.append(value)
        if not number or self._timestamps[-1] != timestamp_ms:
            self._timestamps.append(timestamp_ms)
            self._time_starts.append(number)
        self.record_count = number + 1
        self._unsettled += 1
        self.size_bytes += size_bytes
        return number

    def extend(
        self,
        keys: Sequence[bytes | None] | None,
        values: Sequence[bytes | None],
        headers: Headers | None,
        timestamp_ms: int,
        size_bytes: int,
    ) -> int:
        """Append records that share headers and timestamp; return the number of the first.

        ``size_bytes`` is the size of all of them together.
        """
        first, count = self.record_count, len(values)
        if keys is not None and self._keys is None:
            self._keys = [None] * first
        if headers is not None and self._headers is None:
            self._headers = [None] * first
        if self._keys is not None:
            self._keys += [None] * count if keys is None else keys
        if self._headers is not None:
            self._headers += [headers] * count
        self._values += values
        if not first or self._timestamps[-1] != timestamp_ms:
            self._timestamps.append(timestamp_ms)
            self._time_starts.append(first)
        self.record_count = first + count
        self._unsettled += count
        self.size_bytes += size_bytes
        return first

    def call_back(self, number: int, callback: DeliveryCallback) -> None:
        """Call ``callback`` when the record has its outcome."""
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append((number, callback))

    def columns(self, start: int, stop: int) -> tuple[RecordColumns, int]:
        """Return the records in [start, stop) as columns, and their base timestamp in ms."""
        base, deltas = self._times(start, stop)
        columns = RecordColumns(
            offset_deltas=None,
            timestamp_deltas=deltas,
            keys=None if self._keys is None else self._keys[start:stop],
            values=self._values[start:stop],
            headers=None if self._headers is None else self._headers[start:stop],
        )
        return columns, base

    def _times(self, start: int, stop: int) -> tuple[int, list[int] | None]:
        """Return the first record's timestamp, and each record's difference to it in ms; None if all are the same."""
        begin = bisect_right(self._time_starts, start) - 1
        end = bisect_left(self._time_starts, stop)
        base = self._timestamps[begin]
        if end - begin == 1:
            return base, None
        bounds = [start, *self._time_starts[begin + 1 : end], stop]
        deltas: list[int] = []
        for n, timestamp_ms in enumerate(self._timestamps[begin:end]):
            deltas += [timestamp_ms - base] * (bounds[n + 1] - bounds[n])
        return base, deltas

    @property
    def is_settled(self) -> bool:
        """True when every record has its outcome."""
        return self._unsettled == 0

    def note(
        self, start: int, stop: int, *, base_offset: int | None, error: ClientError | None
    ) -> Sequence[tuple[int, DeliveryCallback]]:
        """Note the outcome of the records in [start, stop); return their callbacks.

        The caller runs the callbacks and then calls ``settle``.
        """
        self._outcomes.append(DeliveryOutcome(start, base_offset, error))
        self._outcomes.sort(key=lambda outcome: outcome.first)
        return [c for c in self.callbacks or () if start <= c[0] < stop]

    def settle(self, start: int, stop: int) -> None:
        """Count the records in [start, stop) as settled. If they were the last ones, wake the waiters."""
        if self._unsettled == stop - start:
            # The records are written or failed. A program that keeps a handle must not keep their bytes in memory.
            self._values = []
            self._keys = self._headers = self.callbacks = None
        self._unsettled -= stop - start
        if self.is_settled:
            waiters, self.waiters = self.waiters, []
            for wake in waiters:
                wake()

    def runs(
        self, start: int, stop: int
    ) -> Iterator[tuple[int, int, int | None, ClientError | None]]:
        """Yield the records in [start, stop) of a settled batch by outcome: (first, stop, first offset, error)."""
        ends = [outcome.first for outcome in self._outcomes[1:]]
        for outcome, end in zip(self._outcomes, [*ends, self.record_count], strict=True):
            first, last = max(start, outcome.first), min(stop, end)
            if first < last:
                base = outcome.base_offset
                offset = None if base is None else base + first - outcome.first
                yield first, last, offset, outcome.error

    def outcome(self, number: int) -> Receipt | ClientError:
        """Return the result of one record of a settled batch."""
        found = self._outcomes[0]
        for outcome in self._outcomes:
            if outcome.first > number:
                break
            found = outcome
        if found.error is not None:
            return found.error
        base = found.base_offset
        return Receipt(
            topic=self.topic,
            partition=self.partition,
            offset=None if base is None else base + number - found.first,
            timestamp_ms=self._timestamps[bisect_right(self._time_starts, number) - 1],
        )


class Delivery:
    """One record in flight. Await it for its receipt, or ignore it.

    Awaiting raises the errors that ``Producer`` lists. Several tasks may await it. Cancelling a task that waits does
    not cancel the record.
    """

    __slots__ = ("_batch", "_number")

    def __init__(self, batch: RecordBatch, number: int) -> None:
        self._batch = batch
        self._number = number

    @property
    def is_done(self) -> bool:
        """True if awaiting would not wait."""
        return self._batch.is_settled

    @property
    def outcome(self) -> Receipt | ClientError | None:
        """The receipt or the error; None while the record is in flight."""
        return self._batch.outcome(self._number) if self._batch.is_settled else None

    def __await__(self) -> Generator[None, None, Receipt]:
        if not self._batch.is_settled:
            yield from until_settled(self._batch)
        outcome = self._batch.outcome(self._number)
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome


def until_settled(batch: RecordBatch) -> Generator[None, None, None]:
    """Wait for the batch on the running loop, which is the producer's own."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    batch.waiters.append(wake)
    try:
        if not batch.is_settled:
            yield from future.__await__()
    finally:
        if wake in batch.waiters:
            batch.waiters.remove(wake)


async def wait_settled(batch: RecordBatch) -> None:
    """Wait until every record of the batch has its outcome."""

    class _Settled:
        def __await__(self) -> Generator[None, None, None]:
            return until_settled(batch)

    if not batch.is_settled:
        await _Settled()
