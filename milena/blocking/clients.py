"""Blocking producers and readers of ``milena.sync``: each runs its asynchronous counterpart on the client's thread."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from milena.blocking.forwarding import Mirrored, described_as
from milena.blocking.loop_thread import ClientLoopThread
from milena.errors import ClientError
from milena.hints import Hinting
from milena.model.clock import SystemClock
from milena.producing.deliveries import Deliveries as AsyncDeliveries
from milena.producing.deliveries import DeliveriesCallback, DeliveryReceipts, DeliveryRun
from milena.producing.delivery import DeliveryCallback, RecordBatch
from milena.producing.producer import Needs, buffer_full
from milena.producing.producer import Producer as AsyncProducer
from milena.reading.reader import PartitionReader as AsyncPartitionReader
from milena.records import ConsumedRecord, FetchedChunk, Receipt

T = TypeVar("T")
R = TypeVar("R", bound=AbstractAsyncContextManager[object, None])

OnExit = Callable[["Resource[Any]"], None]


class Resource(Generic[R]):
    """A blocking context manager around an asynchronous one, whose methods run on the client's own thread.

    If the client is closed, or the block was entered before a fork, leaving the block does nothing.
    """

    def __init__(
        self, inner: R, thread: ClientLoopThread, *, on_exit: OnExit | None = None
    ) -> None:
        self._inner = inner
        self._thread = thread
        self._on_exit = on_exit
        self._is_entered = False

    def __enter__(self) -> Self:
        self._thread.run(self._inner.__aenter__())
        self._is_entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A client that was closed has already left the inner context. One that was never entered needs no exit.
        is_entered, self._is_entered = self._is_entered, False
        try:
            if is_entered and self._thread.is_usable:
                self._thread.run(self._inner.__aexit__(kind, error, trace))
        finally:
            if self._on_exit is not None:
                self._on_exit(self)


class Delivery:
    """One record in flight. Call ``result`` for its receipt, or ignore it."""

    __slots__ = ("_batch", "_number")

    def __init__(self, batch: RecordBatch, number: int) -> None:
        self._batch = batch
        self._number = number

    @property
    def is_done(self) -> bool:
        """True if ``result`` would not wait."""
        return self._batch.is_settled

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the receipt.

        Raises:
            TimeoutError: the record is still in flight after ``timeout_s``. Call again.
            ClientError: the record failed; ``milena.Producer`` lists the errors.
        """
        if not self._batch.is_settled:
            _wait_settled(self._batch, timeout_s)
        outcome = self._batch.outcome(self._number)
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome


def _wait_settled(batch: RecordBatch, timeout_s: float | None) -> None:
    event = threading.Event()
    batch.waiters.append(event.set)
    # If the batch was settled before the waiter was added, no event wakes it. So look again after adding it.
    if not batch.is_settled and not event.wait(timeout_s):
        raise TimeoutError(f"not delivered within {timeout_s} s")


class Deliveries:
    """Records that were sent together and are in flight. Call ``result`` for their receipts, or ignore them."""

    __slots__ = ("_inner",)

    def __init__(self, inner: AsyncDeliveries) -> None:
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    @property
    def is_done(self) -> bool:
        """True if ``result`` would not wait."""
        return self._inner.is_done

    runs = Mirrored[list[DeliveryRun] | None](AsyncDeliveries.runs)
    outcomes = Mirrored[list[Receipt | ClientError] | None](AsyncDeliveries.outcomes)

    def result(self, timeout_s: float | None = None) -> DeliveryReceipts:
        """Wait for the receipts, in the order of the values.

        Raises:
            TimeoutError: records are still in flight after ``timeout_s``. Call again.
            ClientError: the error of the first record that failed; ``milena.Producer`` lists the errors.
        """
        clock = SystemClock()
        deadline_ms = None if timeout_s is None else clock.now_ms() + timeout_s * 1000
        for batch in [part.batch for part in self._inner.parts if not part.batch.is_settled]:
            left_s = None if deadline_ms is None else max(0.0, deadline_ms - clock.now_ms()) / 1000
            _wait_settled(batch, left_s)
        return self._inner.receipts()


class Producer(Resource[AsyncProducer], Hinting, hints="Producer"):
    """The blocking ``milena.Producer``. Any thread may send. Leaving its block delivers or reports every record."""

    @described_as(AsyncProducer.send)
    def send(
        self,
        topic: str,
        value: object,
        *,
        key: object = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
        if_match: int | None = None,
    ) -> Delivery:
        """Send a record. Parameters and errors are those of the asynchronous producer.

        ``on_delivery`` is called on the client's own thread and must not block.
        """
        self._thread.check()
        found = self._inner.offer(
            topic, value, key, partition, headers, timestamp_ms, on_delivery, if_match
        )
        if isinstance(found, Needs):
            found = self._send_later(
                topic,
                partition,
                lambda: self._inner.offer(
                    topic, value, key, partition, headers, timestamp_ms, on_delivery, if_match
                ),
            )
        return Delivery(*found)

    @described_as(AsyncProducer.send_many)
    def send_many(
        self,
        topic: str,
        values: Sequence[object],
        *,
        keys: Sequence[object] | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        on_delivery: DeliveriesCallback | None = None,
    ) -> Deliveries:
        """Send all of these records, or none. Parameters and errors are those of the asynchronous producer.

        ``on_delivery`` is called on the client's own thread, with the asynchronous handle, and must not block.
        """
        self._thread.check()
        records = self._inner.outgoing(values, keys, headers, timestamp_ms)

        def offer() -> AsyncDeliveries | Needs:
            return self._inner.offer_many(topic, records, partition, on_delivery)

        found = offer()
        if isinstance(found, Needs):
            found = self._send_later(topic, partition, offer)
        return Deliveries(found)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record sent so far has its outcome.

        Raises:
            TimeoutError: records have no outcome after ``timeout_s``; they are still in flight.
        """
        self._thread.run(self._inner.flush(), timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Deliver every record, and refuse new ones. Records that are not delivered within ``timeout_s`` fail.

        A second call does nothing.
        """
        if self._thread.is_usable:
            timeout_ms = None if timeout_s is None else timeout_s * 1000
            self._thread.run(self._inner.close(timeout_ms))

    buffered_bytes = Mirrored[int](AsyncProducer.buffered_bytes)

    def _send_later(self, topic: str, partition: int | None, offer: Callable[[], T | Needs]) -> T:
        producer, clock = self._inner, SystemClock()
        deadline_ms = clock.now_ms() + producer.options.max_block_ms
        while True:
            times_freed = producer.times_freed
            found = offer()
            if not isinstance(found, Needs):
                return found
            if found is Needs.TOPIC:
                self._thread.run(producer.learn_topic(topic, partition))
                continue
            left_s = max(0.0, deadline_ms - clock.now_ms()) / 1000
            # A delivery callback runs on the loop's thread. A wait there would stop the loop, which frees the room.
            if self._thread.is_current or not producer.wait_for_room(times_freed, left_s):
                raise buffer_full(producer.options)


class PartitionReader(Resource[AsyncPartitionReader]):
    """The blocking ``milena.PartitionReader``: iterate it for records, or over ``batches()`` or ``chunks()``."""

    def __init__(
        self,
        reader: AsyncPartitionReader,
        thread: ClientLoopThread,
        *,
        on_exit: OnExit | None = None,
    ) -> None:
        super().__init__(reader, thread, on_exit=on_exit)
        self._batches = reader.batches()
        self._chunks = reader.chunks()
        self._left: Iterator[ConsumedRecord] = iter(())
        self._next_offset: int | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        self._next_offset = self._inner.next_offset
        return self

    @property
    def next_offset(self) -> int | None:
        """The offset at which a new reader would continue; None while the start is not located."""
        return self._next_offset

    end_offset = Mirrored[int | None](AsyncPartitionReader.end_offset)
    high_watermark = Mirrored[int | None](AsyncPartitionReader.high_watermark)
    last_stable_offset = Mirrored[int | None](AsyncPartitionReader.last_stable_offset)
    skipped = Mirrored[int](AsyncPartitionReader.skipped)

    def locate(self) -> int:
        """Return the offset at which the reader begins, asking a node if needed. Call this before reading."""
        found = self._thread.run(self._inner.locate())
        self._next_offset = found
        return found

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumedRecord:
        while True:
            for record in self._left:
                self._next_offset = record.offset + 1
                return record
            batch = self._thread.run(_next_of(self._batches))
            if batch is None:
                raise StopIteration
            self._left = iter(batch)

    def batches(self) -> Iterator[list[ConsumedRecord]]:
        """Yield the records of one response at a time, never an empty list."""
        while (batch := self._thread.run(_next_of(self._batches))) is not None:
            self._next_offset = batch[-1].offset + 1
            yield batch

    def chunks(self) -> Iterator[FetchedChunk]:
        """Yield stored batches with verified checksums, not decoded."""
        while (chunk := self._thread.run(_next_of(self._chunks))) is not None:
            self._next_offset = chunk.next_offset
            yield chunk


async def _next_of(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)
