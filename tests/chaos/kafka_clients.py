"""The Kafka dialect of the cluster: producers and consumers of confluent-kafka; no other module knows it.

The clients of librdkafka block. Each one has a thread that makes its calls, so a call that waits for a dead node holds
up nothing else. Keys and values are the JSON that HTTP clients write, so readers of both interfaces compare records.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.chaos.adapter import ApiError, Key, Receipt, Value
from tests.chaos.history import Outcome

Place = tuple[str, int]
"""A topic and a partition."""
Found = list[tuple[int, Key, Value]]
"""Records that were read, as (offset, key, value)."""
T = TypeVar("T")

SOCKET_TIMEOUT_MS = 3_000
SETTINGS: Mapping[str, object] = {
    "socket.timeout.ms": SOCKET_TIMEOUT_MS,
    "socket.connection.setup.timeout.ms": 1_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 5_000,
    "log_level": 0,
}
"""The defaults wait up to a minute for a node that is gone, which is longer than a run."""
WRITING: Mapping[str, object] = {
    "enable.idempotence": True,
    "linger.ms": 0,
    "message.timeout.ms": 20_000,
}
READING: Mapping[str, object] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 200,
    "enable.partition.eof": False,
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 1_000,
}
POLL_S = 0.05
CALL_S = 2.0
"""How long a call waits before the run may stop it."""


class KafkaRefusedError(Exception):
    """A call of a producer failed.

    ``is_over``: whether the producer can do nothing more, mostly because another one has its transactional id. If not,
    the transaction is not committed, and can be aborted.
    """

    def __init__(self, error: object, *, is_over: bool) -> None:
        super().__init__(str(error))
        self.is_over = is_over


class KafkaClient(ABC):
    """A client with a thread of its own. ``close`` lets go of it without waiting for records that are not sent.

    The thread does not keep the process alive: ``send_offsets_to_transaction`` of librdkafka 2.16 was seen to wait for
    ever, in spite of its timeout, after all nodes had ended.
    """

    def __init__(self) -> None:
        self._is_closing = False
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    async def _call(self, work: Callable[..., T], *args: object) -> T:
        """Return the result of a call, which the thread makes after all those before it."""
        loop = asyncio.get_running_loop()
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def job() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(work(*args))
                except Exception as error:
                    answer.set_exception(error)

        self._jobs.put(job)
        return await asyncio.wrap_future(answer, loop=loop)

    def close(self) -> None:
        """Stop the call in progress soon, and end the client."""
        self._is_closing = True
        self._jobs.put(self._end)
        self._jobs.put(None)

    @abstractmethod
    def _end(self) -> None:
        """End the client, in its thread."""


class KafkaProducer(KafkaClient):
    """An idempotent producer; with a transactional id, also the transactions under it."""

    def __init__(self, servers: str, **settings: object) -> None:
        super().__init__()
        self._producer = Producer({"bootstrap.servers": servers, **SETTINGS, **WRITING, **settings})

    def _end(self) -> None:
        self._producer.purge()
        # A producer that can do nothing more raises its error again.
        with contextlib.suppress(KafkaException):
            self._producer.flush(0)

    async def write(
        self, topic: str, partition: int, records: Sequence[tuple[str, Value]]
    ) -> list[Receipt]:
        """Write (key, value) pairs, all before the first one is acknowledged; return one receipt each.

        Raises:
            KafkaRefusedError: the producer can do nothing more. What became of the records is unknown.
        """
        try:
            return await self._call(self._write, topic, partition, records)
        except KafkaException as error:
            raise KafkaRefusedError(error, is_over=True) from error

    def _write(
        self, topic: str, partition: int, records: Sequence[tuple[str, Value]]
    ) -> list[Receipt]:
        receipts: list[Receipt | None] = [None] * len(records)

        def on_delivery(place: int, error: object, message: Message) -> None:
            # librdkafka does not tell whether a record that it gave up on was ever sent.
            receipts[place] = (
                Receipt(Outcome.OK, message.offset())
                if error is None
                else Receipt(Outcome.UNKNOWN, error=str(error)[:80])
            )

        for place, (key, value) in enumerate(records):
            try:
                self._producer.produce(
                    topic,
                    json.dumps(value).encode(),
                    json.dumps(key).encode(),
                    partition,
                    on_delivery=functools.partial(on_delivery, place),
                )
            except BufferError as error:
                receipts[place:] = [Receipt(Outcome.FAILED, error=str(error)[:80])] * (
                    len(records) - place
                )
                break
        while None in receipts and not self._is_closing:
            self._producer.poll(POLL_S)
        return [one or Receipt(Outcome.UNKNOWN, error="given up") for one in receipts]

    # -- transactions

    async def init(self, patience_s: float) -> None:
        """Take the transactional id over, which ends the transaction that is open under it.

        Raises:
            KafkaRefusedError: it did not succeed in time.
        """
        await self._call(self._retry, self._producer.init_transactions, patience_s)

    async def begin(self) -> None:
        """Begin a transaction.

        Raises:
            KafkaRefusedError: the producer is fenced.
        """
        await self._call(self._retry, lambda _: self._producer.begin_transaction(), CALL_S)

    async def send_offsets(
        self, offsets: Mapping[Place, int], metadata: Any, patience_s: float
    ) -> None:
        """Give the next offsets of a group to the transaction. ``metadata``: the member's, from ``Member``.

        Raises:
            KafkaRefusedError: they were not taken.
        """
        told = [TopicPartition(topic, number, upto) for (topic, number), upto in offsets.items()]
        send = self._producer.send_offsets_to_transaction
        await self._call(self._retry, lambda s: send(told, metadata, s), patience_s)

    async def commit(self, patience_s: float) -> tuple[Outcome, str | None]:
        """Request the commit until the outcome is certain, or the patience ends; return it, and the last error."""
        try:
            await self._call(self._retry, self._producer.commit_transaction, patience_s)
        except KafkaRefusedError as error:
            # A fenced producer does not learn what became of a commit whose response it did not get.
            return Outcome.UNKNOWN if error.is_over else Outcome.FAILED, str(error)[:80]
        return Outcome.OK, None

    async def abort(self, patience_s: float) -> bool:
        """Request the abort; return whether it succeeded."""
        try:
            await self._call(self._retry, self._producer.abort_transaction, patience_s)
        except KafkaRefusedError:
            return False
        return True

    def _retry(self, work: Callable[[float], object], patience_s: float) -> None:
        """Repeat a call while its error says that it may be repeated.

        Raises:
            KafkaRefusedError: another error. If the patience ended, the producer counts as over.
        """
        end_s = time.monotonic() + patience_s
        while True:
            try:
                work(CALL_S)
                return
            except KafkaException as raised:
                error = raised.args[0]
                if error.txn_requires_abort():
                    raise KafkaRefusedError(error, is_over=False) from raised
                is_late = time.monotonic() > end_s or self._is_closing
                if not error.retriable() or is_late:
                    raise KafkaRefusedError(error, is_over=True) from raised


class KafkaReader(KafkaClient):
    """A consumer of partitions that are assigned by hand."""

    def __init__(self, servers: str, *, is_uncommitted: bool = False) -> None:
        super().__init__()
        level = "read_uncommitted" if is_uncommitted else "read_committed"
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "unused",
                "isolation.level": level,
                **SETTINGS,
                **READING,
            }
        )

    def _end(self) -> None:
        self._consumer.close()

    async def assign(self, positions: Mapping[Place, int]) -> None:
        """Read these partitions from these offsets on."""
        found = [TopicPartition(topic, number, at) for (topic, number), at in positions.items()]
        await self._call(self._consumer.assign, found)

    async def read(self, count: int, wait_s: float) -> dict[Place, Found]:
        """Return the next records of any of the partitions, by partition.

        Raises:
            ApiError: the client reported an error. Assign again before the next call.
        """
        return await self._call(_read, self._consumer, count, wait_s)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that a member got in one call, with all that a transaction needs to move the group past them."""

    records: dict[Place, Found]
    starts: dict[Place, int]
    """The committed offset of the group in each of these partitions."""
    metadata: Any
    """The member's id and generation, as ``KafkaProducer.send_offsets`` takes them."""


class KafkaMember(KafkaClient):
    """A member of a consumer group that commits its offsets in transactions only."""

    def __init__(self, servers: str, group: str, topic: str, *, protocol: str) -> None:
        """Join. ``protocol``: ``classic``, or ``consumer`` for partitions that the server assigns (KIP-848)."""
        super().__init__()
        reading = {**READING, "auto.offset.reset": "earliest"}
        if protocol == "consumer":
            # The server decides about both.
            del reading["session.timeout.ms"], reading["heartbeat.interval.ms"]
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "group.protocol": protocol,
                "isolation.level": "read_committed",
                **SETTINGS,
                **reading,
            }
        )
        self._has_moved = False
        """Whether partitions were given or taken since the last call."""
        # With callbacks, librdkafka changes the assignment only during a call of ``read``. So the generation in the
        # metadata is that in which the records were read.
        self._consumer.subscribe(
            [topic], on_assign=self._on_moved, on_revoke=self._on_moved, on_lost=self._on_moved
        )

    def _on_moved(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        del consumer, places
        self._has_moved = True

    def _end(self) -> None:
        self._consumer.close()

    async def read(self, count: int, wait_s: float) -> Batch | None:
        """Return the next records; None if there are none, or if the assignment has just changed.

        Raises:
            ApiError: the client reported an error, or the group has moved on meanwhile. Make another member.
        """
        return await self._call(self._read, count, wait_s)

    def _read(self, count: int, wait_s: float) -> Batch | None:
        self._has_moved = False
        records = _read(self._consumer, count, wait_s)
        if not records:
            return None
        if self._has_moved:
            raise ApiError("partitions were moved")
        metadata = self._consumer.consumer_group_metadata()
        try:
            told = self._consumer.committed([TopicPartition(*place) for place in records], CALL_S)
        except KafkaException as error:
            raise ApiError(str(error)[:80]) from error
        starts = {(one.topic, one.partition): max(0, one.offset) for one in told}
        for place, found in records.items():
            if found[0][0] < starts[place]:
                raise ApiError(f"the group stands at {starts[place]} in {place}")
        return Batch(records, starts, metadata)

    async def rewind(self, positions: Mapping[Place, int]) -> None:
        """Read these partitions again, from these offsets on.

        Raises:
            ApiError: the member cannot. Make another one.
        """
        await self._call(self._rewind, positions)

    def _rewind(self, positions: Mapping[Place, int]) -> None:
        for (topic, number), at in positions.items():
            try:
                self._consumer.seek(TopicPartition(topic, number, at))
            except KafkaException as error:
                raise ApiError(str(error)[:80]) from error


def _read(consumer: Consumer, count: int, wait_s: float) -> dict[Place, Found]:
    records: dict[Place, Found] = {}
    try:
        messages = consumer.consume(count, wait_s)
    except (KafkaException, RuntimeError) as error:
        raise ApiError(str(error)[:80]) from error
    for message in messages:
        if message.error() is not None:
            raise ApiError(str(message.error())[:80])
        place = str(message.topic()), int(message.partition() or 0)
        row = int(message.offset() or 0), _decoded(message.key()), _decoded(message.value())
        records.setdefault(place, []).append(row)
    return records


def _decoded(data: Any) -> Any:
    try:
        return json.loads(data)
    except (TypeError, ValueError):
        return data  # a damaged record, which is a finding
