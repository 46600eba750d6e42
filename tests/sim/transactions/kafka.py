"""Transactional producers of Kafka in a cluster under faults: nodes die and are cut off, requests come late and twice.

Each producer writes to several partitions and stages an offset in every transaction. It repeats requests until they are
answered, as Kafka's clients do, and some of its requests arrive a second time, seconds later. Some producers fall
silent in the middle of a transaction while another process takes over their transactional id, and then go on.

The judge reads all partitions at the end and knows what each producer was told. A transaction that was committed is
there once, as a whole and with its offset. An aborted one is not there. Of a transaction whose fate its producer does
not know, either all acknowledged records are there or none. What a reader has seen once stays.

A producer of the first protocol version keeps its epoch, so a late end could hit its next transaction. Kafka has the
same gap; here it is limited to connections that the node does not know to be closed. So this simulation cancels the
ends of such a producer with their connection. Producers with KIP-890 have no such limit.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from milena.model.errors import (
    FateUnknownError,
    FencedError,
    InvalidProducerError,
    MilenaError,
    NotFoundError,
    TransactionAbortedError,
    TransactionNotFoundError,
    UnavailableError,
)
from milena.model.requests import Acks
from node.kafka.batches import in_transaction, stored
from node.metadata.topic_settings import topic_settings
from node.services.transactions.transactional_ids import KafkaProducer
from raft_meta.machine import transactional_ids
from raft_meta.machine.commands import GroupCommit, OffsetCommit
from tests.support.clusters.nodes import Cluster, SimNode
from tests.support.clusters.transacting import read
from tests.support.disk.kafka_batches import KafkaRecord, encoded, numbered

TOPICS = ("a", "b")
PARTITIONS = 2
TIMEOUT_MS = 8_000
REQUEST_S = 4.0
SETTLE_MS = 90_000

T = TypeVar("T")
Place = tuple[str, int]


@dataclass
class Tried:
    """A transaction as its producer knows it."""

    name: str
    number: int
    acknowledged: dict[Place, list[str]] = field(default_factory=dict)
    sent: dict[Place, list[str]] = field(default_factory=dict)
    fate: str = "unknown"
    """``ok``, ``aborted`` or ``unknown``."""

    def values(self) -> set[tuple[Place, str]]:
        """All values that were acknowledged."""
        return {(place, value) for place, found in self.acknowledged.items() for value in found}


class GivenUpError(Exception):
    """The producer has lost its transactional id, or its transaction."""


class Process:
    """A process with a transactional producer, until another process takes over its transactional id."""

    def __init__(self, world: "TransactionWorld", name: str, *, has_epochs: bool) -> None:
        self._world = world
        self._rng = Random(world.rng.random())
        self.name = name
        self.has_epochs = has_epochs
        """Whether each end gives it the next epoch (KIP-890)."""
        self.client: KafkaProducer | None = None
        self.sequences: Counter[Place] = Counter()
        self.is_over = False

    async def run(self) -> None:
        """Make one transaction after the other."""
        while not self.is_over:
            try:
                if self.client is None:
                    await self._begin(keeps=False)
                await self._transact()
            except GivenUpError:
                self.client = None
            except MilenaError:
                await self._abort_or_begin()
            await asyncio.sleep(self._rng.uniform(0, 0.2))

    # -- requests --------------------------------------------------------------------------------

    def _node(self) -> SimNode:
        return self._rng.choice([*self._world.cluster.nodes.values()])

    async def _ask(self, request: Callable[[SimNode], Awaitable[T]], *, is_late: bool = True) -> T:
        """Send a request to some node until it is answered. It may arrive a second time, seconds later."""
        if is_late and self._rng.random() < 0.15:
            self._world.later(request, self._rng.uniform(0, 8))
        for _ in range(60):
            try:
                async with asyncio.timeout(REQUEST_S):
                    return await request(self._node())
            except (UnavailableError, FateUnknownError, TimeoutError):
                pass
            except FencedError as error:
                raise GivenUpError from error
            except InvalidProducerError as error:
                raise GivenUpError from error
            await asyncio.sleep(self._rng.uniform(0.05, 0.3))
        raise GivenUpError

    async def _begin(self, *, keeps: bool) -> None:
        held = self.client if keeps else None
        # A second answer would fence this client itself.
        self.client = await self._ask(
            lambda node: node.transactional_ids.begin(
                self.name, timeout_ms=TIMEOUT_MS, client=held
            ),
            is_late=held is not None,
        )
        self.sequences.clear()

    async def _write(self, tried: Tried, place: Place, values: list[str]) -> None:
        """Write with sequence numbers, and repeat until the leader has answered."""
        assert self.client is not None
        client, sequence = self.client, self.sequences[place]
        tried.sent.setdefault(place, []).extend(values)
        rows = numbered(*(KafkaRecord(value.encode()) for value in values))
        sent = encoded(rows, producer=(*client, sequence), attributes=0x10)

        async def at_leader(node: SimNode) -> object:
            topic, partition = place
            state = node.metadata.image.partition(node.metadata.image.topic_ids[topic], partition)
            found = None if state is None else self._world.cluster.nodes.get(state.leader or -1)
            return await produce(
                found or node, self.name, client, place, sent, enlists=self.has_epochs
            )

        for _ in range(60):
            try:
                await self._ask(at_leader)
            except NotFoundError:
                raise
            except MilenaError as error:
                # Another node leads; its client asks for the leader again.
                if error.code != "not_leader":
                    raise
                await asyncio.sleep(0.1)
            else:
                self.sequences[place] += len(values)
                tried.acknowledged.setdefault(place, []).extend(values)
                return
        raise GivenUpError

    async def _enlist(self, places: list[Place]) -> None:
        client = self._held()
        ids = self._world.cluster.image.topic_ids
        keys = [(ids[topic], partition) for topic, partition in places]
        await self._ask(lambda node: node.transactional_ids.enlist(self.name, client, keys))

    async def _stage(self, number: int) -> None:
        client, group = self._held(), group_of(self.name)
        row = OffsetCommit(
            topic_id=self._world.cluster.image.topic_ids["a"],
            partition=0,
            offset=number,
            leader_epoch=-1,
            metadata="",
        )
        commit = GroupCommit(group_id=group, member_id=None, member_epoch=-1, offsets=(row,))
        # A late repetition could reach the next transaction: Kafka's clients have one connection to the coordinator.
        await self._ask(
            lambda node: node.transactional_ids.stage(self.name, client, commit, enlists=True),
            is_late=self.has_epochs,
        )

    async def _end(self, *, is_commit: bool) -> None:
        client = self._held()
        self.client = await self._ask(
            lambda node: node.transactional_ids.end(
                self.name, client, is_commit=is_commit, raises_client=self.has_epochs
            ),
            is_late=self.has_epochs,
        )
        if self.client != client:
            self.sequences.clear()

    def _held(self) -> KafkaProducer:
        assert self.client is not None
        return self.client

    # -- transactions ----------------------------------------------------------------------------

    async def _transact(self) -> None:
        tried = self._world.next_of(self.name)
        places: list[Place] = [("a", 0)]
        others = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)][1:]
        places += self._rng.sample(others, self._rng.randint(0, 2))
        if not self.has_epochs:
            await self._enlist(places)
        for place in places * self._rng.choice((1, 1, 2)):
            count = self._rng.randint(1, 3)
            known = len(tried.sent.get(place, ()))
            values = [f"{self.name}:{tried.number}:{known + n}" for n in range(count)]
            await self._write(tried, place, values)
            if self._rng.random() < 0.03:
                # Long enough for a successor, and for the timeout.
                await asyncio.sleep(self._rng.uniform(0, 1.5) * TIMEOUT_MS / 1000)
        await self._stage(tried.number)
        if self._rng.random() < 0.2:
            await self._end(is_commit=False)
            tried.fate = "aborted"
            return
        try:
            await self._end(is_commit=True)
        except (TransactionAbortedError, TransactionNotFoundError):
            tried.fate = "aborted"
            raise
        tried.fate = "ok"

    async def _abort_or_begin(self) -> None:
        """Go on after a failure: abort, and get another epoch, as clients do after KIP-360."""
        try:
            with suppress(TransactionNotFoundError):
                await self._end(is_commit=False)
            await self._begin(keeps=True)
        except (GivenUpError, MilenaError):
            self.client = None


async def produce(
    node: SimNode,
    name: str,
    client: KafkaProducer,
    place: Place,
    sent: bytes,
    *,
    enlists: bool,
) -> object:
    """Append a client's batch at a node, as its handler does."""
    topic = node.metadata.image.topic(place[0])
    assert topic is not None
    batch, header = await stored(
        memoryview(sent),
        topic_settings(topic),
        now_ms=node.clock.wall_ms(),
        is_in_transaction=True,
    )
    key = (topic.topic_id, place[1])
    found = await node.transactional_ids.transaction_of(name, client, key, enlists=enlists)
    batch, header = in_transaction(batch, header, found)
    return await node.produce.to_leader.append_led(
        topic, place[1], batch, header, acks=Acks.ALL, timeout_ms=3_000
    )


def group_of(name: str) -> str:
    """The group whose offsets the transactions of a name commit."""
    return f"g-{name}"


class TransactionWorld:
    """One run; see ``problems``."""

    def __init__(self, seed: int, *, seconds: float = 30.0) -> None:
        self.rng = Random(seed)
        self.seconds = seconds
        self.tried: list[Tried] = []
        self.problems: list[str] = []
        self.seen: dict[Place, set[str]] = {}
        self.fates: Counter[str] = Counter()
        self.duplicates = 0
        self.cluster = Cluster(seed=seed, network_ms=lambda rng: rng.choice((0.0, 1.0, 30.0)))
        # Two processes of "x" fence each other again and again.
        self.processes = [
            Process(self, name, has_epochs=has_epochs)
            for name, has_epochs in (("x", False), ("x", False), ("y", True), ("z", False))
        ]
        self._late: set[asyncio.Task[None]] = set()
        self._numbers: Counter[str] = Counter()

    def next_of(self, name: str) -> Tried:
        """Note that another transaction of a name begins."""
        self._numbers[name] += 1
        tried = Tried(name, self._numbers[name])
        self.tried.append(tried)
        return tried

    def later(self, request: Callable[[SimNode], Awaitable[object]], seconds: float) -> None:
        """Let a request arrive a second time, and ignore its answer."""

        async def send() -> None:
            await asyncio.sleep(seconds)
            self.duplicates += 1
            try:
                async with asyncio.timeout(REQUEST_S):
                    await request(self.rng.choice([*self.cluster.nodes.values()]))
            except (MilenaError, TimeoutError):
                pass

        task = asyncio.create_task(send())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def run(self) -> "TransactionWorld":
        """Run processes and faults, then wait until all is decided, and judge."""
        cluster = await self.cluster.start()
        await cluster.until(lambda: cluster.image.feature_level >= transactional_ids.LEVEL)
        for topic in TOPICS:
            await cluster.create(topic, *[(1, 2, 3), (2, 3, 1)][:PARTITIONS])
        tasks = [asyncio.create_task(process.run()) for process in self.processes]
        reading = asyncio.create_task(self._read_on())
        await self._break_nodes()
        for process in self.processes:
            process.is_over = True
        await asyncio.gather(*tasks)
        await asyncio.gather(*self._late)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await cluster.until(self._is_decided, SETTLE_MS)
        await self._judge()
        await cluster.close()
        return self

    async def _break_nodes(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.seconds
        while loop.time() < end:
            await asyncio.sleep(self.rng.uniform(1, 4))
            node_id = self.rng.choice((1, 2, 3))
            if self.rng.random() < 0.5:
                await self.cluster.kill(node_id, power=self.rng.random() < 0.3)
                await asyncio.sleep(self.rng.uniform(0.5, 5))
                await self.cluster.restart(node_id)
            else:
                self.cluster.isolate(node_id)
                await asyncio.sleep(self.rng.uniform(0.5, 5))
                self.cluster.heal()

    async def _read_on(self) -> None:
        """Read committed records all the time: they must all be there at the end."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 1))
            place = (self.rng.choice(TOPICS), self.rng.randrange(PARTITIONS))
            node_id = self.rng.choice([*self.cluster.nodes])
            try:
                async with asyncio.timeout(REQUEST_S):
                    found = await read(self.cluster, node_id, *place)
            except (MilenaError, TimeoutError, KeyError):
                continue
            self.seen.setdefault(place, set()).update(found)

    def _is_decided(self) -> bool:
        image = self.cluster.image
        return (
            not image.ending
            and not any(row.is_open for row in image.transactional_ids.values())
            and not any(
                runner.log.writers.transactions.open
                for node in self.cluster.nodes.values()
                for runner in node.replicas
            )
        )

    async def _judge(self) -> None:
        logs = {
            (topic, number): await read(self.cluster, 1, topic, number)
            for topic in TOPICS
            for number in range(PARTITIONS)
        }
        for place, found in logs.items():
            twice = [value for value, count in Counter(found).items() if count > 1]
            if twice:
                self.problems.append(f"{place} has {twice} more than once")
            gone = self.seen.get(place, set()) - set(found)
            if gone:
                self.problems.append(f"{place} has no longer {gone}")
        visible = {(place, value) for place, found in logs.items() for value in found}
        for tried in self.tried:
            self.fates[tried.fate] += 1
            self._judge_one(tried, visible)
        self._judge_offsets(logs["a", 0])

    def _judge_one(self, tried: Tried, visible: set[tuple[Place, str]]) -> None:
        name = f"{tried.name}:{tried.number}"
        wanted = tried.values()
        all_sent = {(place, value) for place, found in tried.sent.items() for value in found}
        there = all_sent & visible
        if tried.fate == "ok" and wanted - there:
            self.problems.append(f"{name} is committed, and lacks {wanted - there}")
        if tried.fate == "aborted" and there:
            self.problems.append(f"{name} is aborted, and {there} is there")
        if tried.fate == "unknown" and there and wanted - there:
            self.problems.append(f"{name} is torn: {there} is there, {wanted - there} is not")

    def _judge_offsets(self, log: list[str]) -> None:
        """Compare the offsets of groups with the last transaction of the log to which each transaction writes."""
        image = self.cluster.image
        if image.staging:
            self.problems.append(f"offsets are staged for ever: {image.staging}")
        key = (image.topic_ids["a"], 0)
        for name in {tried.name for tried in self.tried}:
            last = max((int(v.split(":")[1]) for v in log if v.startswith(f"{name}:")), default=0)
            found = image.offsets.get(group_of(name))
            committed = None if found is None else found.get(key)
            offset = 0 if committed is None else committed.offset
            if offset != last:
                self.problems.append(f"{name}: offset {offset}, and the last transaction is {last}")
