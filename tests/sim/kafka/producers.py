"""Producers: idempotent ones, which have several batches on their way, and transactional ones of both protocols.

A producer of the first protocol (TV1) enlists partitions and groups itself, and keeps its epoch. So its late end, or
its late offsets, could hit its next transaction. Kafka has the same gap. Here it is limited to connections that the
node does not know to be closed: what these clients give up ends with its connection. Producers with KIP-890 (TV2) get
an epoch for each transaction, and have no such limit.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from http_api.protocol.kafka_codes import KafkaCode
from tests.sim.kafka import records
from tests.sim.kafka.client import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    GROUP,
    INIT_PRODUCER,
    PRODUCE,
    TRANSACTION,
    TXN_OFFSET_COMMIT,
    Client,
    GivenUpError,
    Place,
    RefusedError,
    RetriableError,
    check,
)
from tests.sim.kafka.judge import Tried
from tests.sim.kafka.wires import BrokerConnection, ConnectionLostError

if TYPE_CHECKING:
    from tests.sim.kafka.world import KafkaWorld

TIMEOUT_MS = 8_000
ACKNOWLEDGED_MS = 3_000
LATE_CHANCE = 0.08
SPOILED_CHANCE = 0.03
FIRST_TV2_PRODUCE, TV2 = 12, 5
"""Versions with KIP-890: of Produce, and of EndTxn and TxnOffsetCommit."""
IDS_FROM = 13
IN_FLIGHT = 5
ORDER_TRIES = 8
"""How often a batch is repeated whose predecessor seems to be missing."""
FENCED = frozenset(
    {
        KafkaCode.INVALID_PRODUCER_EPOCH,
        KafkaCode.PRODUCER_FENCED,
        KafkaCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
LATE_CODES = frozenset({KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER})


class Identity(NamedTuple):
    """The id and epoch of a producer."""

    producer_id: int
    producer_epoch: int


class Membership(NamedTuple):
    """The group and the member for which a transaction commits offsets."""

    group: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class FencedError(Exception):
    """Another process has taken over the transactional id, or the transaction was overdue."""


async def produce(
    client: Client,
    place: Place,
    data: bytes,
    *,
    version: int,
    name: str | None,
    late_chance: float = 0.0,
    connection: BrokerConnection | None = None,
) -> None:
    """Send one batch to its leader, as the client knows it. ``connection``: send it on this one, or not at all.

    Raises:
        ConnectionLostError, RetriableError, RefusedError: it is not acknowledged.
    """
    topic, partition = place
    leader = await client.leader(place)
    fields: dict[str, Any] = {
        "transactional_id": name,
        "acks": -1,
        "timeout_ms": ACKNOWLEDGED_MS,
        "topic_data": [
            {
                "name": topic,
                "topic_id": client.ids[topic],
                "partition_data": [{"index": partition, "records": data}],
            }
        ],
    }
    found = await client.ask(leader, PRODUCE, version, fields, connection=connection)
    code = found.responses[0].partition_responses[0].error_code
    if code != KafkaCode.DUPLICATE_SEQUENCE_NUMBER:
        check(code)
    # Not before the response: a partition takes any sequence as the first one of a producer, as Kafka does.
    if client.rng.random() < late_chance:
        client.repeat_later(leader, PRODUCE, version, fields)


class IdempotentProducer:
    """A producer without transactions. It sends several batches before it has a response."""

    def __init__(self, world: "KafkaWorld", name: str, place: Place) -> None:
        self._world = world
        self.name = name
        self.place = place
        self.client = Client(world, name)
        self._rng = self.client.rng
        self.acknowledged = 0
        self.is_over = False

    async def run(self) -> None:
        """Write until the run is over, and then until all is acknowledged."""
        identity = await self._begin()
        sequence = 0
        while not self.is_over:
            await asyncio.sleep(self._rng.uniform(0.2, 1))
            sequence = await self._send(identity, sequence)

    async def _begin(self) -> Identity:
        async def attempt() -> Identity:
            fields = {"transactional_id": None, "transaction_timeout_ms": TIMEOUT_MS}
            fields |= {"producer_id": -1, "producer_epoch": -1}
            found = await self.client.ask(
                self._rng.choice(self._world.cluster.node_ids), INIT_PRODUCER, 4, fields
            )
            check(found.error_code)
            return Identity(found.producer_id, found.producer_epoch)

        while True:
            with suppress(GivenUpError):
                return await self.client.until_answered(attempt)

    async def _send(self, identity: Identity, sequence: int) -> int:
        """Send some batches at once; repeat those without a response, the first one first. Return the next sequence."""
        left: list[tuple[int, list[str]]] = []
        for _ in range(self._rng.randint(1, IN_FLIGHT)):
            count = self._rng.randint(1, 3)
            left.append((sequence, [f"{self.name}:{sequence + n}" for n in range(count)]))
            sequence += count
        version = self._rng.randint(3, IDS_FROM)
        codec = self._rng.randrange(5)
        if self._rng.random() < SPOILED_CHANCE:
            await self._send_spoiled(identity, left[0], version)
        while left:
            datas = [
                records.batch(
                    values,
                    records.Sent(*identity, first),
                    codec=codec if version >= 7 else 0,
                    is_in_transaction=False,
                )
                for first, values in left
            ]
            try:
                # All of them on one connection: if the first one is lost, so are the others.
                connection = await self.client.connection(await self.client.leader(self.place))
            except (ConnectionLostError, RetriableError):
                self.client.forget()
                await asyncio.sleep(self._rng.uniform(0.02, 0.3))
                continue
            tasks = []
            for data in datas:
                tasks.append(asyncio.create_task(self._is_taken(data, version, connection)))
                # Each task sends before the next one does.
                await asyncio.sleep(0)
            taken = await asyncio.gather(*tasks)
            again = [one for one, is_taken in zip(left, taken, strict=True) if not is_taken]
            self.acknowledged += sum(map(len, (values for _, values in left)))
            self.acknowledged -= sum(map(len, (values for _, values in again)))
            self._world.judge.counts["batches"] += sum(taken)
            left = again
            if left:
                self.client.forget()
                await asyncio.sleep(self._rng.uniform(0.02, 0.3))
        return sequence

    async def _is_taken(self, data: bytes, version: int, connection: BrokerConnection) -> bool:
        """Send a batch once; return whether it is acknowledged."""
        try:
            await produce(
                self.client, self.place, data, version=version, name=None,
                late_chance=LATE_CHANCE, connection=connection,
            )  # fmt: skip
        except (ConnectionLostError, RetriableError):
            return False
        except RefusedError as error:
            if error.code not in LATE_CODES:
                raise
            return False
        return True

    async def _send_spoiled(
        self, identity: Identity, first: tuple[int, list[str]], version: int
    ) -> None:
        sequence, values = first
        data = records.spoiled(
            self._rng, values, records.Sent(*identity, sequence), is_in_transaction=False
        )
        with suppress(ConnectionLostError, RetriableError, RefusedError):
            await produce(self.client, self.place, data, version=version, name=None)
            self._world.judge.broken(f"{self.name}: a spoiled batch was taken")


class TransactionalProducer:
    """A process's producer of transactions: its steps. ``identity`` None: it has none yet, or was fenced."""

    def __init__(self, world: "KafkaWorld", name: str, client: Client, *, is_tv2: bool) -> None:
        self._world = world
        self._rng = client.rng
        self.name = name
        self.client = client
        self.is_tv2 = is_tv2
        self.identity: Identity | None = None
        self.sequences: Counter[Place] = Counter()

    # -- requests --------------------------------------------------------------------------------

    async def _ask(
        self,
        kind: int,
        coordinated: str,
        request: tuple[int, int, dict[str, Any]],
        *,
        is_repeated: bool,
        may_linger: bool = True,
    ) -> Any:
        """Send a request to a coordinator until it is answered. ``is_repeated``: it may come once more, later."""
        key, version, fields = request

        async def attempt() -> Any:
            broker_id = await self.client.coordinator(kind, coordinated)
            if is_repeated and self._rng.random() < LATE_CHANCE:
                self.client.repeat_later(broker_id, key, version, fields)
            found = await self.client.ask(broker_id, key, version, fields, may_linger=may_linger)
            check(_code_of(key, found))
            return found

        try:
            return await self.client.until_answered(attempt)
        except RefusedError as error:
            if error.code in FENCED:
                raise FencedError(error.code.name) from error
            raise

    def _held(self) -> Identity:
        assert self.identity is not None
        return self.identity

    def _own(self) -> dict[str, Any]:
        return {"transactional_id": self.name, **self._held()._asdict()}

    async def begin(self, *, keeps: bool) -> None:
        """Get an epoch. ``keeps``: the next one of this producer, instead of that of a new process."""
        held = self._held() if keeps else Identity(-1, -1)
        fields = {
            "transactional_id": self.name,
            "transaction_timeout_ms": TIMEOUT_MS,
            **held._asdict(),
        }
        # A second response would fence this client itself.
        found = await self._ask(
            TRANSACTION,
            self.name,
            (INIT_PRODUCER, self._rng.randint(3, 5), fields),
            is_repeated=keeps,
            may_linger=keeps,
        )
        self.identity = Identity(found.producer_id, found.producer_epoch)
        self.sequences.clear()

    async def enlist(self, places: Sequence[Place]) -> None:
        """Add partitions to the transaction."""
        topics = [
            {"name": topic, "partitions": sorted({n for t, n in places if t == topic})}
            for topic in sorted({topic for topic, _ in places})
        ]
        own = {f"v3_and_below_{name}": value for name, value in self._own().items()}
        fields = {**own, "v3_and_below_topics": topics}
        await self._ask(
            TRANSACTION,
            self.name,
            (ADD_PARTITIONS, self._rng.randint(0, 3), fields),
            is_repeated=True,
        )

    async def write(self, tried: Tried, place: Place, values: list[str]) -> None:
        """Write a batch, and repeat it until it is acknowledged."""
        identity, sequence = self._held(), self.sequences[place]
        tried.sent.setdefault(place, []).extend(values)
        sent = records.Sent(*identity, sequence)
        codec = self._rng.choice((0, 0, 0, 1, 2, 3, 4))
        data = records.batch(values, sent, codec=codec, is_in_transaction=True)
        first, last = (FIRST_TV2_PRODUCE, IDS_FROM) if self.is_tv2 else (7, 11)
        version = self._rng.randint(first, last)
        if self._rng.random() < SPOILED_CHANCE:
            bad = records.spoiled(self._rng, values, sent, is_in_transaction=True)
            with suppress(ConnectionLostError, RetriableError, RefusedError):
                await produce(self.client, place, bad, version=version, name=self.name)
                self._world.judge.broken(f"{self.name}: a spoiled batch was taken")
        order_tries = 0

        async def attempt() -> None:
            nonlocal order_tries
            try:
                await produce(
                    self.client, place, data, version=version, name=self.name,
                    late_chance=LATE_CHANCE,
                )  # fmt: skip
            except RefusedError as error:
                order_tries += 1
                if error.code not in LATE_CODES or order_tries > ORDER_TRIES:
                    raise
                raise RetriableError from error

        try:
            await self.client.until_answered(attempt)
        except RefusedError as error:
            if error.code in FENCED:
                raise FencedError(error.code.name) from error
            raise
        self.sequences[place] += len(values)
        tried.acknowledged.setdefault(place, []).extend(values)

    async def stage(self, place: Place, offset: int, member: Membership) -> None:
        """Commit an offset of a group with the transaction."""
        self._world.judge.asked[member.group, place[1]] = max(
            offset, self._world.judge.asked[member.group, place[1]]
        )
        own = self._own()
        if not self.is_tv2:
            fields = {**own, "group_id": member.group}
            await self._ask(
                TRANSACTION,
                self.name,
                (ADD_OFFSETS, self._rng.randint(0, 4), fields),
                is_repeated=True,
            )
        row = {
            "partition_index": place[1],
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "m",
        }
        fields = {
            **own,
            "group_id": member.group,
            "generation_id": member.generation,
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "topics": [{"name": place[0], "partitions": [row]}],
        }
        version = TV2 if self.is_tv2 else self._rng.randint(3, 4)
        await self._ask(
            GROUP,
            member.group,
            (TXN_OFFSET_COMMIT, version, fields),
            is_repeated=self.is_tv2,
            may_linger=self.is_tv2,
        )

    async def end(self, *, is_commit: bool) -> None:
        """Commit or abort."""
        version = TV2 if self.is_tv2 else self._rng.randint(1, 4)
        fields = {**self._own(), "committed": is_commit}
        found = await self._ask(
            TRANSACTION,
            self.name,
            (END_TXN, version, fields),
            is_repeated=self.is_tv2,
            may_linger=self.is_tv2,
        )
        if self.is_tv2:
            self.identity = Identity(found.producer_id, found.producer_epoch)
            self.sequences.clear()

    async def recover(self) -> None:
        """Go on after a failure: abort, and get another epoch, as clients do after KIP-360."""
        if self.identity is None:
            return
        try:
            with suppress(RefusedError):
                await self.end(is_commit=False)
            await self.begin(keeps=True)
        except (GivenUpError, FencedError, RefusedError):
            self.identity = None


def _code_of(key: int, found: Any) -> int:
    match key:
        case 24:
            rows = [
                row.partition_error_code
                for topic in found.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            ]
        case 28:
            rows = [row.error_code for topic in found.topics for row in topic.partitions]
        case _:
            rows = [found.error_code]
    return next((code for code in rows if code), 0)


class TransactionalProcess:
    """A process that makes one transaction after the other, in several partitions and with an offset in each."""

    def __init__(self, world: "KafkaWorld", name: str, *, is_tv2: bool) -> None:
        self._world = world
        self.name = name
        self.producer = TransactionalProducer(world, name, Client(world, name), is_tv2=is_tv2)
        self._rng = self.producer.client.rng
        self.is_over = False

    async def run(self) -> None:
        """Make transactions until the run is over."""
        while not self.is_over:
            try:
                if self.producer.identity is None:
                    await self.producer.begin(keeps=False)
                await self._transact()
            except (GivenUpError, FencedError):
                self.producer.identity = None
            except RefusedError as error:
                self._world.note(f"{self.name}: {error}")
                await self.producer.recover()
            # Often at once: a leader may still be behind the end of the last transaction.
            await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.2)) * self._rng.random())

    async def _transact(self) -> None:
        world, producer, rng = self._world, self.producer, self._rng
        tried = world.next_of(self.name)
        places: list[Place] = [world.places[0], *rng.sample(world.places[1:], rng.randint(0, 2))]
        if not producer.is_tv2:
            await producer.enlist(places)
        for place in places * rng.choice((1, 1, 2)):
            known = len(tried.sent.get(place, ()))
            count = rng.randint(1, 3)
            values = [f"{self.name}:{tried.number}:{known + n}" for n in range(count)]
            await producer.write(tried, place, values)
            if rng.random() < 0.03:
                # Long enough for a successor, and for the timeout.
                await asyncio.sleep(rng.uniform(0, 1.5) * TIMEOUT_MS / 1000)
        await producer.stage(world.places[0], tried.number, Membership(group_of(self.name)))
        await finish(producer, tried, is_commit=rng.random() < 0.8)


async def finish(producer: TransactionalProducer, tried: Tried, *, is_commit: bool) -> None:
    """End a transaction, and note what became of it.

    Raises:
        RefusedError, FencedError, GivenUpError: as ``TransactionalProducer.end``.
    """
    if not is_commit:
        await producer.end(is_commit=False)
        tried.fate = "aborted"
        return
    tried.fate = "unknown"
    try:
        await producer.end(is_commit=True)
    except RefusedError:
        tried.fate = "aborted"
        raise
    tried.fate = "ok"


def group_of(name: str) -> str:
    """Return the group whose offsets the transactions of a name commit."""
    return f"g-{name}"
