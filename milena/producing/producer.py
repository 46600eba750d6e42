"""The producer takes records from a program, one at a time or in lists, and writes them in batches.

``send`` picks the partition, puts the record into that partition's open batch, and returns. It waits only while the
buffer is full. While a partition has batches to send, one task sends them to the log (``milena.producing.sender``).

Threads: any thread may call ``offer``. The blocking producer calls it on the program's thread, so that a record does
not wait for the loop's thread. One lock guards the state that ``offer`` uses. It is held for a few assignments at a
time and never across a wait. All other state is used only on the loop's thread. ``offer`` wakes the loop if a batch is
full or was just opened, unless a task is already sending the batches of that partition.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from enum import Enum, unique
from functools import partial
from random import Random
from types import TracebackType
from typing import Self, TypeVar

from milena.cluster.metadata import MetadataCache
from milena.errors import (
    BadRecordError,
    BufferFullError,
    ClientClosedError,
    ClientError,
    RecordTooLargeError,
)
from milena.hints import Hinting
from milena.model.clock import Clock
from milena.model.columns import Headers
from milena.producing.batching import Accumulator, Lane, RecordRows, Shipment, record_size
from milena.producing.deliveries import Deliveries, DeliveriesCallback, DeliveryPart
from milena.producing.delivery import Delivery, DeliveryCallback, RecordBatch, wait_settled
from milena.producing.options import ProducerOptions
from milena.producing.outgoing import OutgoingRecords, outgoing_records
from milena.producing.placement import TopicPlacement, placed_rows
from milena.producing.record_checks import (
    check_bounds,
    check_condition,
    check_partition,
    check_timestamp,
    checked_headers,
    keyless,
    too_large,
)
from milena.producing.sender import ProducerCallsPort, Sender
from milena.producing.serializers import plain_bytes, serialize
from milena.producing.topic_placements import TopicPlacements

T = TypeVar("T")

logger = logging.getLogger(__name__)

ABORT_AFTER_MS = 5_000
"""How long a producer still delivers records after an exception has left its block, in ms."""


@unique
class Needs(Enum):
    """The event for which ``offer`` would have to wait before it can take a record."""

    TOPIC = "the topic's partitions are not known"
    ROOM = "the buffer is full"


class Producer(Hinting, hints="Producer"):
    """Write records. An asynchronous context manager: leaving it delivers every record, or reports those that failed.

        async with client.producer() as producer:
            receipt = await (await producer.send("orders", b"tea", key=b"u1"))
            print(receipt.partition, receipt.offset)

    Awaiting a delivery may raise:

        UnknownResultError     the record may or may not have been written
        ConditionFailedError   the partition did not end at ``if_match``: the record was not written
        DeliveryTimeoutError   the record was not written in time
        RecordTooLargeError    the topic takes no record of this size
        TargetNotFoundError    the topic is gone
        ClientClosedError      the producer was closed first, and the record was not written
        other AnswerErrors     a node refused the record, and says why

    Records of one partition are written in the order in which they were sent. If one of these errors drops a record,
    the records behind it are still written.
    """

    def __init__(
        self,
        options: ProducerOptions,
        *,
        transport: ProducerCallsPort,
        metadata: MetadataCache,
        clock: Clock,
        chance: Random,
    ) -> None:
        self.options = options
        self._clock = clock
        self._accumulator = Accumulator(
            batch_bytes=options.batch_bytes,
            linger_ms=options.linger_ms,
            buffer_bytes=options.buffer_bytes,
            delivery_timeout_ms=options.delivery_timeout_ms,
            clock=clock,
        )
        self._sender = Sender(
            options,
            transport=transport,
            leaders=metadata,
            shipments=self,
            clock=clock,
            chance=chance,
        )
        self._has_plain_values = options.value_serializer is plain_bytes
        self._lock = threading.Lock()
        self._topics = TopicPlacements(
            options,
            metadata=metadata,
            can_make=transport.can_make_topic,
            accumulator=self._accumulator,
            lock=self._lock,
            clock=clock,
            chance=chance,
        )
        self._room_freed = threading.Condition(self._lock)
        """Wakes threads that wait for room; tasks of the loop wait in ``_room_waiters``."""
        self.times_freed = 0
        """The number of times that room was freed; see ``wait_for_room``."""
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[Lane, asyncio.TimerHandle] = {}
        self._is_turn_due = False
        self._is_closing = False
        self._is_aborted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._topics.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(timeout_ms=None if error is None else ABORT_AFTER_MS)

    # -- for programs ------------------------------------------------------------------------------

    async def send(
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
        """Send a record. Wait while the buffer is full, and for the metadata of a topic that is new to the client.

        Await the returned delivery for the receipt, or pass ``on_delivery``, or do neither.

        Args:
            topic: the topic's name.
            value: a value that ``value_serializer`` takes; None is a tombstone.
            key: a key that ``key_serializer`` takes. Records of one key go to one partition.
            partition: the partition; it overrides the key.
            headers: pairs of name and value.
            timestamp_ms: ms since 1970; default: now.
            on_delivery: called with (receipt, None) or (None, error), on the loop's thread; it must not block.
            if_match: write the record only if this is the next offset of its partition. Name the partition by
                ``partition`` or a key. The record is sent in a batch for itself.

        Raises:
            TargetNotFoundError: no such topic.
            BadRecordError: the record cannot be sent; the message says why.
            RecordTooLargeError: the record is larger than the topic, or the buffer, can hold.
            BufferFullError: the buffer was full for ``max_block_ms``.
            UnreachableError: the topic is new to the client, and no node responded for ``max_block_ms``.
            NeverReachedError: no node has ever responded, for the client's ``connect_timeout_ms``.
            ClientClosedError: the producer is closed.
        """
        if self._is_turn_due:
            # If a program only calls ``send``, which needs no wait, the loop would never send its batches. The turn
            # comes before the record is taken, so that a cancelled ``send`` has taken no record.
            await _Turn()
            # Reset this after the turn. Otherwise another task could send during the turn, and overtake this record.
            self._is_turn_due = False
        found = (
            Needs.ROOM
            if self._room_waiters
            else self.offer(
                topic, value, key, partition, headers, timestamp_ms, on_delivery, if_match
            )
        )
        if isinstance(found, Needs):
            found = await self._send_later(
                found,
                topic,
                partition,
                lambda: self.offer(
                    topic, value, key, partition, headers, timestamp_ms, on_delivery, if_match
                ),
            )
        return Delivery(*found)

    async def send_many(
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
        """Take all of these records or none, at a fraction of the cost of ``send`` for each.

        Each record goes to the partition that ``send`` would choose; records without a key take turns in whole batches.
        Each record has its own outcome. The call waits until the buffer has room for all of them.

        Args:
            topic: the topic's name.
            values: values that ``value_serializer`` takes; None is a tombstone.
            keys: one key per value that ``key_serializer`` takes; None for a record without a key.
            partition: the partition of all records; it overrides the keys.
            headers: the headers of every record.
            timestamp_ms: the timestamp of every record.
            on_delivery: called once with the returned handle, when every record has its outcome.

        Raises:
            RecordTooLargeError: a record is too large, as in ``send``, or all records together exceed the buffer.
            ClientError: the errors of ``send``. The error of one record has its index in ``values``.
        """
        records = self.outgoing(values, keys, headers, timestamp_ms)
        if self._is_turn_due:
            await _Turn()
            self._is_turn_due = False

        def offer() -> Deliveries | Needs:
            return self.offer_many(topic, records, partition, on_delivery)

        found = Needs.ROOM if self._room_waiters else offer()
        if isinstance(found, Needs):
            found = await self._send_later(found, topic, partition, offer)
        return found

    async def flush(self) -> None:
        """Send all open batches now, and wait until every record sent so far has its outcome."""
        with self._lock:
            lanes = self._accumulator.seal_all()
            batches = list(self._accumulator.unsettled)
        for lane in lanes:
            self._poke(lane)
        for batch in batches:
            await wait_settled(batch)

    async def close(self, timeout_ms: float | None = None) -> None:
        """Deliver every record, and refuse new ones. You may call it again.

        Each record has its outcome when this returns. Records that are not delivered within ``timeout_ms`` (None: their
        delivery timeout), or when this call is cancelled, fail. Their error is ``ClientClosedError``, or
        ``UnknownResultError`` for records in flight.
        """
        with self._lock:
            self._is_closing = True
            self._free_room()
        self._wake_room_waiters()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self.flush()
        except TimeoutError:
            logger.warning("producer closed before everything was delivered")
        finally:
            await self._abort()

    @property
    def buffered_bytes(self) -> int:
        """The bytes of records that are neither written nor failed, as ``buffer_bytes`` counts them."""
        return self._accumulator.buffered_bytes

    # -- for programs and the blocking façade ------------------------------------------------------

    def offer(  # noqa: PLR0917 - a call per record: keywords cost time
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
        on_delivery: DeliveryCallback | None,
        if_match: int | None,
    ) -> tuple[RecordBatch, int] | Needs:
        """Take a record and return its batch and its number there; if that needs a wait, return what it needs.

        Any thread may call this.

        Raises:
            BadRecordError, RecordTooLargeError, ClientClosedError: see ``send``.
        """
        placement = self._topics.get(topic)
        if placement is None:
            self._check_unknown(topic)
            return Needs.TOPIC
        # Without a serializer, bytes are used as they are, which saves a call per record.
        raw_key = None if key is None else self._raw_key(key)
        raw_value = (
            value if type(value) is bytes and self._has_plain_values else self._raw_value(value)
        )
        pairs = checked_headers(headers) if headers else None
        size = record_size(raw_key, raw_value, pairs)
        if raw_key is None and placement.needs_keys:
            raise keyless(topic)
        if size > placement.record_bytes_max or size > self.options.buffer_bytes:
            raise too_large(topic, size, placement.record_bytes_max, self.options.buffer_bytes)
        wall_ms = self._clock.wall_ms()
        if timestamp_ms is None:
            timestamp_ms = wall_ms
        else:
            check_timestamp(timestamp_ms)
            check_bounds(timestamp_ms, placement.timestamps, wall_ms)
        if partition is None:
            partition = placement.partition_for(raw_key, raw_value)
        else:
            check_partition(partition)
            if partition >= placement.partition_count:
                return Needs.TOPIC
        if if_match is not None:
            check_condition(if_match, partition, self.options.acks)
        return self._take(
            placement,
            partition,
            raw_key,
            raw_value,
            pairs,
            timestamp_ms,
            size,
            on_delivery,
            if_match,
        )

    def outgoing(
        self,
        values: Sequence[object],
        keys: Sequence[object] | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
    ) -> OutgoingRecords:
        """Serialize and check records for ``offer_many``. Any thread may call this.

        Raises:
            BadRecordError: see ``send_many``.
        """
        if timestamp_ms is not None:
            check_timestamp(timestamp_ms)
        return outgoing_records(
            values,
            keys,
            checked_headers(headers) if headers else None,
            timestamp_ms,
            value_serializer=self.options.value_serializer,
            key_serializer=self.options.key_serializer,
        )

    def offer_many(
        self,
        topic: str,
        records: OutgoingRecords,
        partition: int | None,
        on_delivery: DeliveriesCallback | None,
    ) -> Deliveries | Needs:
        """Take all of these records; if that needs a wait, take none and return what it needs.

        Any thread may call this.

        Raises:
            BadRecordError, RecordTooLargeError, ClientClosedError: see ``send_many``.
        """
        placement = self._topics.get(topic)
        if placement is None:
            self._check_unknown(topic)
            return Needs.TOPIC
        self._check_fit(topic, records, placement)
        if partition is not None:
            check_partition(partition)
            if partition >= placement.partition_count:
                return Needs.TOPIC
        rows = placed_rows(placement, records, partition)
        deliveries = self._take_many(placement, rows, records, on_delivery)
        if isinstance(deliveries, Deliveries) and on_delivery is not None and not deliveries:
            _call_together(on_delivery, deliveries)
        return deliveries

    async def learn_topic(self, topic: str, partition: int | None) -> None:
        """Fetch the topic's metadata, for which ``Needs.TOPIC`` asks.

        Raises:
            TargetNotFoundError, BadRecordError, UnreachableError: see ``send``.
        """
        if partition is not None:
            check_partition(partition)
        await self._topics.learn(topic, at_least=0 if partition is None else partition + 1)

    def wait_for_room(self, times_freed: int, timeout_s: float) -> bool:
        """Block this thread, which must not be the loop's, until room is freed; return False on a timeout.

        Read ``times_freed`` before the ``offer`` that finds no room. If room is freed between the two calls, this
        returns at once.
        """
        assert self._loop is not None, "use the producer as a context manager"
        self._loop.call_soon_threadsafe(self._send_all)
        with self._lock:
            return self._room_freed.wait_for(
                lambda: self.times_freed != times_freed or self._is_closing, timeout_s
            )

    # -- for the sender ----------------------------------------------------------------------------

    def settle(
        self, shipment: Shipment, *, base_offset: int | None, error: ClientError | None
    ) -> None:
        """Report the outcome of a shipment: run callbacks, then wake waiters, then free its bytes in the buffer."""
        batch = shipment.batch
        due = batch.note(shipment.start, shipment.stop, base_offset=base_offset, error=error)
        for number, callback in due:
            _call(callback, batch, number)
        batch.settle(shipment.start, shipment.stop)
        if batch.is_settled:
            with self._lock:
                self._accumulator.settled(batch)
                self._free_room()
            self._wake_room_waiters(1)

    def _free_room(self) -> None:
        self.times_freed += 1
        self._room_freed.notify_all()

    def put_back(self, lane: Lane, shipments: Sequence[Shipment]) -> None:
        """Put these shipments before all others of their lane."""
        with self._lock:
            self._accumulator.put_back(lane, *shipments)

    # -- taking a record ---------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closing:
            raise ClientClosedError("the producer is closed")
        if self._loop is None:
            raise ClientClosedError(
                "the producer is not open: use it in a block, with client.producer() as producer"
            )

    def _check_unknown(self, topic: object) -> None:
        """Raise an error if the producer is not open, or ``topic`` is no ``str``, before the topic is looked up."""
        self._check_open()
        if not isinstance(topic, str):
            raise BadRecordError(f"topic={topic!r}: a topic's name is text")

    def _take(  # noqa: PLR0917 - a call per record: keywords cost time
        self,
        placement: TopicPlacement,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        size_bytes: int,
        on_delivery: DeliveryCallback | None,
        if_match: int | None,
    ) -> tuple[RecordBatch, int] | Needs:
        accumulator = self._accumulator
        with self._lock:
            if self._is_closing:
                self._check_open()
            lane = placement.sticky if partition is None else placement.lane(partition)
            if if_match is None and (
                found := accumulator.add_to_open(
                    lane, key, value, headers, timestamp_ms, size_bytes
                )
            ):
                if on_delivery is not None:
                    found[0].call_back(found[1], on_delivery)
                return found
            if not accumulator.has_room(size_bytes):
                return Needs.ROOM
            lane = self._lane_for(placement, partition, size_bytes)
            if if_match is None:
                batch, number, is_due = accumulator.add(
                    lane, key, value, headers, timestamp_ms, size_bytes
                )
            else:
                number, is_due = 0, True
                batch = accumulator.add_alone(
                    lane, key, value, headers, timestamp_ms, size_bytes, if_match
                )
            if on_delivery is not None:
                batch.call_back(number, on_delivery)
            must_wake = is_due and not lane.is_busy
            if is_due and lane.waiting:
                self._is_turn_due = True
        if must_wake:
            self._wake(lane)
        return batch, number

    def _check_fit(self, topic: str, records: OutgoingRecords, placement: TopicPlacement) -> None:
        """Refuse all records of a call if the topic does not accept one of them, or if they exceed the buffer."""
        if placement.needs_keys and (records.keys is None or None in records.keys):
            place = 0 if records.keys is None else records.keys.index(None)
            raise keyless(topic, place)
        if records.timestamp_ms is not None:
            check_bounds(records.timestamp_ms, placement.timestamps, self._clock.wall_ms())
        buffer_bytes = self.options.buffer_bytes
        largest_allowed = min(placement.record_bytes_max, buffer_bytes)
        if records.size_bytes <= largest_allowed:
            return
        largest = max(records.sizes)
        if largest > largest_allowed:
            raise too_large(topic, largest, placement.record_bytes_max, buffer_bytes)
        if records.size_bytes > buffer_bytes:
            raise RecordTooLargeError(
                f"{len(records.sizes)} records of {records.size_bytes} bytes do not fit into "
                f"buffer_bytes={buffer_bytes}; send them in parts"
            )

    def _take_many(
        self,
        placement: TopicPlacement,
        placed: Sequence[tuple[int | None, RecordRows]],
        records: OutgoingRecords,
        on_delivery: DeliveriesCallback | None,
    ) -> Deliveries | Needs:
        accumulator = self._accumulator
        timestamp_ms = records.timestamp_ms
        if timestamp_ms is None:
            timestamp_ms = self._clock.wall_ms()
        parts: list[DeliveryPart] = []
        due: list[Lane] = []
        with self._lock:
            self._check_open()
            if not accumulator.has_room(records.size_bytes):
                return Needs.ROOM
            for partition, rows in placed:
                start = 0
                while start < len(rows.values):
                    lane = self._lane_for(placement, partition, rows.sizes[start])
                    part, is_due = accumulator.add_many(
                        lane, rows, start, records.headers, timestamp_ms
                    )
                    start += len(part.places)
                    parts.append(part)
                    if is_due:
                        due.append(lane)
            deliveries = Deliveries(parts)
            if on_delivery is not None:
                deliveries.when_done(partial(_call_together, on_delivery))
            to_wake = [lane for lane in dict.fromkeys(due) if not lane.is_busy]
            if any(lane.waiting for lane in due):
                self._is_turn_due = True
        for lane in to_wake:
            self._wake(lane)
        return deliveries

    def _lane_for(self, placement: TopicPlacement, partition: int | None, size_bytes: int) -> Lane:
        """Return the lane of a partition; for None, the lane in turn, or the next one if its batch is full."""
        if partition is not None:
            return placement.lane(partition)
        lane = placement.sticky
        if not self._accumulator.has_open(lane, size_bytes):
            self._close_batch(lane)
            lane = placement.advance()
        return lane

    def _close_batch(self, lane: Lane) -> None:
        """Seal the lane's open batch, so that it is sent."""
        if lane.open is not None:
            self._accumulator.seal(lane)
            self._is_turn_due = True
            if not lane.is_busy:
                self._wake(lane)

    def _raw_key(self, key: object) -> bytes | None:
        if key is None or (type(key) is bytes and self.options.key_serializer is plain_bytes):
            return key
        return serialize(self.options.key_serializer, key, "the key")

    def _raw_value(self, value: object) -> bytes | None:
        if type(value) is bytes and self._has_plain_values:
            return value
        return serialize(self.options.value_serializer, value, "the value")

    # -- waiting for room or a topic ---------------------------------------------------------------

    async def _send_later(
        self,
        needs: Needs,
        topic: str,
        partition: int | None,
        offer: Callable[[], T | Needs],
    ) -> T:
        found: T | Needs = needs
        deadline_ms = self._clock.now_ms() + self.options.max_block_ms
        has_waited = False
        try:
            while isinstance(found, Needs):
                if found is Needs.TOPIC:
                    await self.learn_topic(topic, partition)
                else:
                    await self._wait_for_room(deadline_ms, is_next=has_waited)
                    has_waited = True
                found = offer()
        finally:
            # The freed room may be enough for the next waiting task too.
            self._wake_room_waiters(1)
        return found

    async def _wait_for_room(self, deadline_ms: float, *, is_next: bool) -> None:
        """Wait until room is freed. Tasks wait in the order of arrival; ``is_next`` puts this one first.

        A task that was woken and found too little room waits again as the first one.
        """
        self._send_all()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if is_next:
            self._room_waiters.appendleft(waiter)
        else:
            self._room_waiters.append(waiter)
        try:
            async with asyncio.timeout((deadline_ms - self._clock.now_ms()) / 1000):
                await waiter
        except TimeoutError:
            raise buffer_full(self.options) from None
        finally:
            self._room_waiters.remove(waiter)

    def _wake_room_waiters(self, count: int | None = None) -> None:
        woken = 0
        for waiter in self._room_waiters:
            if not waiter.done() and (count is None or woken < count):
                waiter.set_result(None)
                woken += 1

    # -- sending -----------------------------------------------------------------------------------

    def _wake(self, lane: Lane) -> None:
        assert self._loop is not None, "use the producer as a context manager"
        if threading.get_ident() == self._thread_id:
            # Do not send at once: with ``linger_ms=0``, records that are sent in one turn of the loop still share a
            # batch.
            self._loop.call_soon(self._poke, lane)
        else:
            self._loop.call_soon_threadsafe(self._poke, lane)

    def _poke(self, lane: Lane) -> None:
        """Start a task for the lane's batches if one is due, or a timer for the time when one will be due."""
        assert self._loop is not None
        if self._is_aborted:
            return
        now_ms = self._clock.now_ms()
        with self._lock:
            if lane.is_busy:
                return
            lane.is_busy = self._accumulator.is_ready(lane, now_ms)
            due_ms = self._accumulator.due_ms(lane)
        timer = self._timers.pop(lane, None)
        if timer is not None:
            timer.cancel()
        if lane.is_busy:
            # The task itself takes its first shipment. If the task is cancelled before it starts, no shipment is lost.
            task = self._loop.create_task(self._run(lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif due_ms is not None:
            wait_s = max(0.0, due_ms - now_ms) / 1000
            self._timers[lane] = self._loop.call_later(wait_s, self._poke, lane)

    async def _run(self, lane: Lane) -> None:
        """Send the lane's shipments, one after the other."""
        while (shipment := self._next(lane)) is not None:
            await self._sender.deliver(lane, shipment)
        self._poke(lane)

    def _next(self, lane: Lane) -> Shipment | None:
        with self._lock:
            shipment = self._accumulator.take(lane, self._clock.now_ms())
            lane.is_busy = shipment is not None
        return shipment

    def _send_all(self) -> None:
        with self._lock:
            lanes = self._accumulator.seal_all()
        for lane in lanes:
            self._poke(lane)

    async def _abort(self) -> None:
        """Stop sending, and settle every remaining record with an error."""
        self._is_aborted = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._sender.close()
        self._topics.close()
        self._settle_all(ClientClosedError("the producer was closed before it was written"))

    def _settle_all(self, error: ClientError) -> None:
        with self._lock:
            self._accumulator.seal_all()
            left = [s for lane in self._accumulator.lanes() for s in self._drained(lane)]
        for shipment in left:
            self.settle(shipment, base_offset=None, error=error)

    def _drained(self, lane: Lane) -> Iterable[Shipment]:
        while lane.waiting:
            yield lane.waiting.popleft()


def _call_together(callback: DeliveriesCallback, deliveries: Deliveries) -> None:
    try:
        callback(deliveries)
    except Exception:
        # The callback belongs to the program. Its error must not stop the delivery of other records.
        logger.exception("delivery callback failed records=%d", len(deliveries))


class _Turn:
    """An awaitable that waits for one turn of the event loop."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def buffer_full(options: ProducerOptions) -> BufferFullError:
    """Return the error for a record that waited too long for room."""
    return BufferFullError(
        f"the buffer of {options.buffer_bytes} bytes was full for {options.max_block_ms:g} ms: "
        "records come faster than the cluster takes them"
    )


def _call(callback: DeliveryCallback, batch: RecordBatch, number: int) -> None:
    outcome = batch.outcome(number)
    try:
        if isinstance(outcome, ClientError):
            callback(None, outcome)
        else:
            callback(outcome, None)
    except Exception:
        # The callback belongs to the program. Its error must not stop the delivery of other records.
        logger.exception(
            "delivery callback failed topic=%s partition=%d", batch.topic, batch.partition
        )
