"""A Kafka client without any call of its own: it finds leaders and coordinators, connects, and repeats requests."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from http_api.protocol.kafka_codes import KafkaCode
from node.kafka.wire import cold
from tests.sim.kafka.wires import BrokerConnection, ConnectionLostError

if TYPE_CHECKING:
    from uuid import UUID

    from tests.sim.kafka.world import KafkaWorld

T = TypeVar("T")
Place = tuple[str, int]
"""A topic and a partition."""

PRODUCE, FETCH, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 0, 1, 3, 8, 9, 10
JOIN, HEARTBEAT, LEAVE, SYNC, INIT_PRODUCER = 11, 12, 13, 14, 22
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT, CONSUMER_HEARTBEAT = 24, 25, 26, 28, 68

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators."""
PATIENCE_S = 4.0
"""How long a client waits for a response before it repeats the request."""
TRIES_MAX = 60
RETRIABLE = frozenset(
    {
        KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
        KafkaCode.LEADER_NOT_AVAILABLE,
        KafkaCode.NOT_LEADER_OR_FOLLOWER,
        KafkaCode.REQUEST_TIMED_OUT,
        KafkaCode.REPLICA_NOT_AVAILABLE,
        KafkaCode.COORDINATOR_NOT_AVAILABLE,
        KafkaCode.NOT_COORDINATOR,
        KafkaCode.NOT_ENOUGH_REPLICAS,
        KafkaCode.CONCURRENT_TRANSACTIONS,
        KafkaCode.UNKNOWN_TOPIC_ID,
        KafkaCode.FENCED_LEADER_EPOCH,
        KafkaCode.UNKNOWN_LEADER_EPOCH,
        KafkaCode.OFFSET_NOT_AVAILABLE,
        KafkaCode.KAFKA_STORAGE_ERROR,
        KafkaCode.UNSTABLE_OFFSET_COMMIT,
        KafkaCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Codes after which clients ask again, for the leader or the coordinator first."""


class RefusedError(Exception):
    """A response has a code after which the request is not repeated."""

    def __init__(self, code: int) -> None:
        super().__init__(KafkaCode(code).name)
        self.code = KafkaCode(code)


class GivenUpError(Exception):
    """A request was repeated for so long that its client gave it up."""


class RetriableError(Exception):
    """A response has a retriable code."""


def check(code: int) -> None:
    """Raise the error that a code means.

    Raises:
        RetriableError, RefusedError: it is one.
    """
    if code in RETRIABLE:
        raise RetriableError(KafkaCode(code).name)
    if code:
        raise RefusedError(code)


class Client:
    """The connections of one process, and what it knows of the cluster."""

    def __init__(self, world: "KafkaWorld", name: str) -> None:
        self._world = world
        self.name = name
        self.rng = Random(world.rng.random())
        self._connections: dict[int, BrokerConnection] = {}
        self._connecting = asyncio.Lock()
        self._leaders: dict[Place, int] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self.ids: dict[str, UUID] = {}
        """The id of each topic that it has asked for."""

    # -- one request -----------------------------------------------------------------------------

    async def ask(
        self,
        broker_id: int,
        key: int,
        version: int,
        fields: dict[str, Any],
        *,
        patience_s: float = PATIENCE_S,
        may_linger: bool = True,
        connection: BrokerConnection | None = None,
    ) -> Any:
        """Send a request to a broker; return the response. ``connection``: send it on this one, or not at all.

        Raises:
            ConnectionLostError: there is none.
        """
        connection = connection or await self.connection(broker_id)
        if not connection.is_open:
            raise ConnectionLostError("the connection broke")
        body = cold.encode_request(key, version, fields)
        return await connection.ask(
            key, version, body, patience_s=patience_s, may_linger=may_linger
        )

    async def connection(self, broker_id: int) -> BrokerConnection:
        """Return the connection to a broker; connect if there is none.

        Raises:
            ConnectionLostError: the broker cannot be reached.
        """
        async with self._connecting:
            # One at a time, and in the order of requests: a client has one connection to a broker.
            connection = self._connections.get(broker_id)
            if connection is None or not connection.is_open:
                connection = await self._world.cluster.connect(broker_id)
                self._connections[broker_id] = connection
            return connection

    def repeat_later(self, broker_id: int, key: int, version: int, fields: dict[str, Any]) -> None:
        """Let a request arrive once more, seconds later on a connection of its own, and ignore its response."""
        seconds = self.rng.uniform(0, 8)

        async def send() -> None:
            await asyncio.sleep(seconds)
            with suppress(ConnectionLostError):
                connection = await self._world.cluster.connect(broker_id)
                self._world.network.late += 1
                body = cold.encode_request(key, version, fields)
                await connection.ask(key, version, body, patience_s=PATIENCE_S, may_linger=True)
                connection.close(is_heard=True)

        self._world.keep(send())

    def disconnect(self) -> None:
        """End all connections, as the process does when it dies."""
        for connection in self._connections.values():
            connection.close(is_heard=self.rng.random() < 0.8)
        self._connections.clear()

    # -- the cluster -----------------------------------------------------------------------------

    async def leader(self, place: Place) -> int:
        """Return the broker that leads a partition, as far as this client knows.

        Raises:
            ConnectionLostError, RetriableError: it could not find out.
        """
        if place not in self._leaders:
            await self._learn(place[0])
        found = self._leaders.get(place, -1)
        if found < 0:
            self._leaders.pop(place, None)
            raise RetriableError("there is no leader")
        return found

    async def _learn(self, topic: str) -> None:
        named = {"topics": [{"topic_id": None, "name": topic}], "allow_auto_topic_creation": False}
        found = await self.ask(self._any(), METADATA, self.rng.choice((10, 12, 13)), named)
        (row,) = found.topics
        check(row.error_code)
        self.ids[topic] = row.topic_id
        for part in row.partitions:
            self._leaders[topic, part.partition_index] = part.leader_id

    def _any(self) -> int:
        return self.rng.choice(self._world.cluster.node_ids)

    async def coordinator(self, kind: int, key: str) -> int:
        """Return the broker that coordinates a group or a transactional id.

        Raises:
            ConnectionLostError, RetriableError: it could not find out.
        """
        if (kind, key) not in self._coordinators:
            asked = {"key": key, "key_type": kind}
            found = await self.ask(self._any(), FIND_COORDINATOR, 3, asked)
            check(found.error_code)
            self._coordinators[kind, key] = found.node_id
        return self._coordinators[kind, key]

    def forget(self) -> None:
        """Ask for leaders and coordinators again."""
        self._leaders.clear()
        self._coordinators.clear()

    # -- many tries ------------------------------------------------------------------------------

    async def until_answered(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request until it has a response that is none to repeat it for.

        Raises:
            RefusedError: as of the attempt.
            GivenUpError: it took too long.
        """
        for _ in range(TRIES_MAX):
            try:
                return await attempt()
            except (ConnectionLostError, RetriableError):
                self.forget()
            await asyncio.sleep(self.rng.uniform(0.02, 0.3))
        raise GivenUpError
