"""Clients of the simulated cluster: writers of three kinds, readers of any replica, and a reader of the metadata.

They run in their own process, and call the ports from which the HTTP server is built. A call ends when its node's
process ends.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from http_api.ports.node import Ports
from milena.model.batch.decode import decode_columns, iterate_batches
from milena.model.batch.encode import encode_batch
from milena.model.batch.header import ProducerStamp
from milena.model.columns import RecordColumns
from milena.model.errors import (
    CorruptBatchError,
    FateUnknownError,
    MilenaError,
    OffsetOutOfRangeError,
    PartitionCountChangedError,
)
from milena.model.requests import (
    Acks,
    FetchRequest,
    FetchResult,
    IdempotencyKey,
    ProduceRequest,
    Records,
)
from raft_meta.machine.image import Image, PartitionKey
from tests.sim.cluster.history import History, Write, decoded, encoded
from tests.sim.cluster.invariants import ViolationError

if TYPE_CHECKING:
    from tests.sim.cluster.machine import NodeProcess
    from tests.sim.cluster.world import World

TIMEOUT_MS = 1_000
PAUSE_MS_MAX = 250
FINISH_S = 60.0
WRITABLE_S = 10.0
"""The virtual seconds within which every partition must accept a write after all faults have ended."""
READ_BYTES = 1 << 16


class Clients:
    """All clients of a topic; the topic is ``t`` unless a subclass changes that."""

    topic = "t"
    prefix = "v"
    """The prefix of the written values."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = world.rng
        self.history = History()
        self._values = 0
        self._running = 0

    @property
    def topic_id(self) -> str:
        """Return the topic's id."""
        return self._world.topic_id

    @property
    def partition_count(self) -> int:
        """Return the number of partitions to write and read."""
        return self._world.options.partitions

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Return a coroutine function per client."""
        partitions = range(self.partition_count)
        writers = [self._write_plain] * 3 + [self._write_keyed] * 2 + [self._write_idempotent] * 2
        readers = [
            lambda partition=partition, is_local=is_local: self._read(partition, is_local)
            for partition in partitions
            for is_local in (False, True)
        ]
        return [
            *(self._counted(client) for client in (*writers, *readers)),
            self._follow_metadata,
            self._ask_for_ends,
        ]

    def _counted(
        self, make: Callable[[], Coroutine[Any, Any, None]]
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        async def run() -> None:
            self._running += 1
            await make()
            self._running -= 1

        return run

    async def finish(self) -> None:
        """Wait until all clients have ended. Writers that repeat until success succeed now that faults are over."""
        await self._world.until(
            lambda: self._running == 0, FINISH_S, "liveness: clients do not come to an end"
        )
        deadline = self._world.scheduler.now + WRITABLE_S
        for partition in range(self.partition_count):
            while not await self._takes_a_write(partition):
                if self._world.scheduler.now > deadline:
                    raise ViolationError(f"liveness: {self.topic}/{partition} takes no write")
                await self._pause()

    def final_values(self) -> dict[int, dict[int, str]]:
        """Return the committed values to check at the end, by partition and offset."""
        return self._world.checker.final_values(self.topic_id)

    async def _takes_a_write(self, partition: int) -> bool:
        write = self._new_write("plain")
        write.partition = partition
        node = self._some_node()
        if node is not None:
            await self._produce(node, write, None)
        return write.offset is not None

    # Writing.

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.uniform(1, PAUSE_MS_MAX) / 1000)

    def _some_node(self) -> "NodeProcess | None":
        running = [
            m.process
            for m in self._world.machines.values()
            if m.process is not None and m.process.ports is not None
        ]
        return self._rng.choice(running) if running else None

    def _new_write(self, kind: str) -> Write:
        self._values += 1
        partition = self._rng.randrange(self.partition_count)
        write = Write(f"{self.prefix}{self._values}", partition, kind)
        self.history.writes[write.value] = write
        return write

    @property
    def _is_over(self) -> bool:
        return self._world.has_healed

    async def _write_plain(self) -> None:
        while not self._is_over:
            await self._pause()
            node = self._some_node()
            if node is not None:
                await self._produce(node, self._new_write("plain"), None)

    async def _write_keyed(self) -> None:
        """Write one value with a key, on any node, until it is acknowledged."""
        while not self._is_over:
            write = self._new_write("keyed")
            key = IdempotencyKey(
                key_hash=write.value.encode().ljust(16, b"-"), body_hash=b"12345678"
            )
            while write.offset is None and not write.is_given_up:
                await self._pause()
                node = self._some_node()
                if node is not None:
                    await self._produce(node, write, key)

    async def _produce(self, node: "NodeProcess", write: Write, key: IdempotencyKey | None) -> None:
        request = ProduceRequest(
            topic=self.topic,
            records=self._records(write),
            acks=Acks.ALL,
            timeout_ms=TIMEOUT_MS,
            partition=write.partition,
            idempotency=key,
        )
        error: MilenaError | None
        offset: int | None = None
        try:
            [receipt] = await node.ask(lambda ports: ports.produce.produce(request))
            error, offset = receipt.error, receipt.offset
        except MilenaError as raised:
            error = raised
        self._note(write, error, offset)

    def _records(self, write: Write) -> Records:
        return Records(keys=None, values=[encoded(write.value)])

    def _note(self, write: Write, error: MilenaError | None, offset: int | None) -> None:
        if error is None:
            write.offset = offset
        elif isinstance(error, FateUnknownError):
            self.history.doubts += 1
        elif isinstance(error, PartitionCountChangedError):
            write.is_given_up = True
        elif write.kind == "plain":
            write.is_refused = True
            write.why = f"{type(error).__name__}: {error}"

    async def _write_idempotent(self) -> None:
        """Write batches to one partition with one producer id; repeat each until its fate is known."""
        partition = self._rng.randrange(self.partition_count)
        producer = None
        while producer is None and not self._is_over:
            await self._pause()
            node = self._some_node()
            if node is not None:
                try:
                    producer = await node.ask(lambda ports: ports.metadata.allocate_producer(None))
                except MilenaError:
                    continue
        sequence = 0
        while producer is not None and not self._is_over:
            self._values += 1
            write = Write(f"{self.prefix}{self._values}", partition, "idempotent")
            write.sequence, write.producer = sequence, producer.producer_id
            self.history.writes[write.value] = write
            stamp = ProducerStamp(producer.producer_id, producer.producer_epoch, sequence)
            await self._insist(write, numbered_batch(write.value, stamp))
            sequence += 1

    async def _insist(self, write: Write, batch: bytes) -> None:
        partition = write.partition
        assert partition is not None, "a numbered batch names its partition"
        while write.offset is None:
            await self._pause()
            node = self._some_node()
            if node is None:
                continue
            try:
                receipt = await node.ask(
                    lambda ports: ports.produce.produce_batch(
                        self.topic, partition, batch, acks=Acks.ALL, timeout_ms=TIMEOUT_MS
                    )
                )
            except MilenaError as error:
                self._note(write, error, None)
            else:
                write.offset = receipt.base_offset

    def make_noise(self) -> None:
        """Add some commands to the metadata log."""
        for _ in range(20):
            self.call(lambda ports: ports.metadata.allocate_producer(None))

    def call(self, make: Callable[[Ports], Coroutine[Any, Any, object]]) -> None:
        """Call some node. The response is ignored, but the run waits for it before the final checks."""
        node = self._some_node()
        if node is not None:
            self._running += 1
            self._world.client_loop.call_soon(self._ask, node, make)

    def _ask(
        self, node: "NodeProcess", make: Callable[[Ports], Coroutine[Any, Any, object]]
    ) -> None:
        node.ask(make).add_done_callback(self._on_answer)

    def _on_answer(self, done: "asyncio.Future[object]") -> None:
        self._running -= 1
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, MilenaError):
            self._world.fail(f"a call ended with {error!r}")

    # Reading.

    async def _read(self, partition: int, is_local: bool) -> None:
        """Read from the start, from any node; after the end of faults, to the final end."""
        offset = 0
        while True:
            key = self._key(partition)
            end = self._world.checker.ledgers[key].end if key in self._world.checker.ledgers else 0
            if self._is_over and offset >= end and self._world.is_whole():
                return
            node = self._some_node()
            if node is None:
                await self._pause()
                continue
            offset = await self._read_on(node, partition, offset, is_local)
            await asyncio.sleep(self._rng.uniform(1, 120) / 1000)

    def _key(self, partition: int) -> PartitionKey:
        return (self.topic_id, partition)

    async def _read_on(
        self, node: "NodeProcess", partition: int, offset: int, is_local: bool
    ) -> int:
        request = FetchRequest(
            topic=self.topic,
            partition=partition,
            offset=offset,
            timestamp_ms=None,
            max_bytes=READ_BYTES,
            timeout_ms=self._rng.choice((0, 50)),
            is_local=is_local,
        )
        try:
            result = await node.ask(lambda ports: ports.reads.fetch(request))
        except OffsetOutOfRangeError as error:
            return self._read_elsewhere(node, partition, offset, error)
        except MilenaError:
            return offset
        try:
            return self._take(f"a reader of {node.name}", partition, offset, result)
        except CorruptBatchError:
            # A fault may have damaged the bytes: bits flipped on a disk, or in the network. Only the client notices
            # that.
            if not self._world.faults.has_lost_any and not self._world.wires.tampered:
                raise
            return offset

    def _read_elsewhere(
        self, node: "NodeProcess", partition: int, offset: int, error: OffsetOutOfRangeError
    ) -> int:
        """Check a node's response that there is nothing at an offset."""
        if offset <= self._acknowledged_end(partition):
            raise ViolationError(f"{node.name} says of a committed offset: {error}") from error
        return offset

    def _take(self, who: str, partition: int, offset: int, result: FetchResult) -> int:
        """Check and count the records; return the next offset to read."""
        key = self._key(partition)
        for position, header in list(iterate_batches(result.batches)):
            columns = decode_columns(result.batches, header, position, bytes_max=1 << 20)
            for number, value in enumerate(columns.values):
                at = header.base_offset + number
                if at < result.start_offset or at >= result.high_watermark:
                    continue
                if at != offset:
                    raise ViolationError(f"{who} asked for {partition}/{offset} and got {at}")
                self._world.checker.on_read(who, key, at, decoded(value or b""))
                self.history.reads += 1
                offset += 1
        return offset

    def _acknowledged_end(self, partition: int) -> int:
        """Return the offset after the last acknowledged record."""
        writes = self.history.writes.values()
        return max(
            (w.offset + 1 for w in writes if w.partition == partition and w.offset is not None),
            default=0,
        )

    async def _ask_for_ends(self) -> None:
        """Check that a reported end is never below what was acknowledged before the question."""
        while not self._is_over:
            await self._pause()
            node = self._some_node()
            partition = self._rng.randrange(self.partition_count)
            known = self._acknowledged_end(partition)
            if node is None:
                continue
            try:
                found = await node.ask(
                    lambda ports, partition=partition: ports.reads.offsets(self.topic, partition)  # type: ignore[misc]
                )
            except MilenaError:
                continue
            if found.high_watermark < known:
                raise ViolationError(
                    f"{node.name} says that partition {partition} ends at {found.high_watermark}, "
                    f"after {known - 1} was acknowledged"
                )

    # The metadata.

    async def _follow_metadata(self) -> None:
        """Check that the images of one node never go back, and neither do epochs."""
        seen: dict[int, Image] = {}
        while not self._is_over:
            node = self._some_node()
            if node is None:
                await self._pause()
                continue
            before = seen.get(node.incarnation, Image())
            try:
                image = await node.ask(
                    lambda ports, index=before.index: ports.metadata.image_since(  # type: ignore[misc]
                        index, timeout_ms=100
                    )
                )
            except MilenaError:
                continue
            if image.index < before.index:
                raise ViolationError(f"{node.name}: the image went back to {image.index}")
            for key, state in before.partitions.items():
                after = image.partitions.get(key)
                if after is not None and after.leader_epoch < state.leader_epoch:
                    raise ViolationError(f"{node.name}: leader epoch of {key} went back")
            seen[node.incarnation] = image
            await self._pause()


def numbered_batch(value: str, stamp: ProducerStamp, key: bytes | None = None) -> bytes:
    """Return a batch with a producer's sequence, as a client encodes it."""
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=None,
        keys=None if key is None else [key],
        values=[encoded(value)],
        headers=None,
    )
    return encode_batch(columns, base_timestamp_ms=1, producer=stamp)
