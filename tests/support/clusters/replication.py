"""Two brokers' replicas of partitions, connected by the real fetcher and fetch server over a memory network."""

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from node.metrics.counts import NodeCounts
from node.replica.runner import PartitionRunner
from node.replication.fetch_server import FetchServer
from node.replication.fetch_wire import FETCH, FETCH_WAKE
from node.replication.fetcher import LeaderFetcher
from tests.support.clusters import leaders
from tests.support.clusters.runners import TOPIC_ID, Bench, settings
from tests.support.fakes.peers import Network
from tests.support.fakes.standing import FixedStanding
from tests.support.time.virtual_time import LoopClock

if TYPE_CHECKING:
    from raft_meta.machine.image import Broker

LEADER, FOLLOWER = 1, 2


@dataclass(eq=False)
class Replicated:
    """Broker 1 leads ``count`` partitions in epoch 5. Broker 2 follows them; both are in sync."""

    count: int = 1
    wait_ms: int = 500
    network: Network = field(default_factory=Network)
    configs: dict[str, str] = field(default_factory=dict)
    counts: NodeCounts = field(default_factory=NodeCounts)
    """The counters of the follower's node."""

    def __post_init__(self) -> None:
        self.brokers: dict[int, Broker] = leaders.brokers(1, 2)
        self.leaders = [self._bench(LEADER) for _ in range(self.count)]
        self.followers = [self._bench(FOLLOWER) for _ in range(self.count)]
        self._sessions = itertools.count(1)
        self.serve()
        self.peer = self.network.join(FOLLOWER, {})
        self.fetcher = LeaderFetcher(
            LEADER,
            peer=self.peer,
            clock=LoopClock(),
            wait_ms_max=self.wait_ms,
            bytes_max=1 << 20,
            standing=FixedStanding(self.brokers[FOLLOWER].broker_epoch),
            next_session_id=lambda: next(self._sessions),
            counts=self.counts,
        )
        for number in range(self.count):
            self.take_roles(number)

    def _bench(self, broker_id: int) -> Bench:
        return Bench(broker_id=broker_id, settings=settings(**self.configs))

    def serve(self) -> None:
        """Give the leader's node a new fetch server."""
        self.server = FetchServer(find_runner=self._find, brokers=lambda: self.brokers)
        self.network.handlers[LEADER] = {
            FETCH: self.server.on_fetch,
            FETCH_WAKE: self.server.on_wake,
        }

    def _find(self, topic_id: str, partition: int) -> PartitionRunner | None:
        is_known = topic_id == TOPIC_ID and partition < self.count
        return self.leaders[partition].runner if is_known else None

    def take_roles(
        self,
        number: int = 0,
        epoch: int = 5,
        version: int = 7,
        isr: tuple[int, ...] = (LEADER, FOLLOWER),
    ) -> None:
        for bench in (self.leaders[number], self.followers[number]):
            bench.runner.partition = number
            bench.brokers = self.brokers
            bench.image(
                leaders.partition(isr, leader=LEADER, leader_epoch=epoch, partition_epoch=version)
            )

    @property
    def leader(self) -> Bench:
        return self.leaders[0]

    @property
    def follower(self) -> Bench:
        return self.followers[0]

    def start(self) -> "Replicated":
        for bench in self.followers:
            self.fetcher.follow(bench.runner)
        self.fetcher.start()
        return self

    def requests(self) -> list[dict[str, object]]:
        """Return every fetch request so far."""
        return [fields for _, _, kind, fields in self.network.calls if kind == FETCH]

    async def stop(self) -> None:
        await self.fetcher.stop()
        self.server.close()
