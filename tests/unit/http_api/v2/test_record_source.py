"""Rules of a stream that follows a partition of real nodes: when it ends with an error, and that it is never silent."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from itertools import pairwise

import pytest

from http_api.ports.node import ApiLimits
from http_api.protocol.media import RecordFormat, StreamFraming
from http_api.serving.places import KEEP_ALIVE_MS, RETRY_S_TOTAL
from http_api.streaming.answer import with_keep_alives
from http_api.v2.record_source import RecordSource
from milena.model.errors import MilenaError, OffsetOutOfRangeError, UnavailableError
from milena.model.requests import FetchRequest
from raft_meta.machine.commands import CreateTopic, DeleteTopic
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.time.virtual_time import LoopClock, after, virtual

LAG_MS = 5_000
"""How long one read may take to find that it cannot be answered."""


class Follower:
    """A client that follows partition 0 of ``t`` on one node. ``pieces`` are what it got, and when."""

    def __init__(self, node: SimNode, offset: int | str, topic_tag: str = "") -> None:
        request = FetchRequest(
            topic="t",
            partition=0,
            offset=offset,
            timestamp_ms=None,
            max_bytes=1 << 20,
            timeout_ms=0,
            is_local=False,
        )
        self.source = RecordSource(
            ports=node.api_ports(ApiLimits()),
            request=request,
            format=RecordFormat.JSON,
            count=None,
            is_following=True,
            topic_tag=topic_tag,
        )
        self.clock = LoopClock()
        self.pieces: list[tuple[int, bytes]] = []
        self.error: MilenaError | None = None
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            async with (
                aclosing(self.source.bodies(StreamFraming.LINES)) as bodies,
                aclosing(with_keep_alives(bodies)) as sent,
            ):
                async for body in sent:
                    self.pieces.append((self.clock.now_ms(), body))
        except MilenaError as error:
            self.pieces.append((self.clock.now_ms(), b""))
            self.error = error

    @property
    def records(self) -> int:
        return sum(body.count(b"\n") for _, body in self.pieces)

    @property
    def longest_silence_ms(self) -> int:
        times = [time for time, _ in self.pieces]
        return max((b - a for a, b in pairwise(times)), default=0)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


Lose = Callable[[Cluster], Awaitable[None]]


async def stopped(cluster: Cluster) -> None:
    """Nodes 2 and 3 are silent, and their connections stay up."""
    cluster.isolate(1)


async def killed(cluster: Cluster) -> None:
    for node_id in (2, 3):
        await cluster.kill(node_id)


@virtual
@pytest.mark.parametrize("lose", [stopped, killed])
@pytest.mark.parametrize("wait_ms", [None, 4_000])
@pytest.mark.parametrize("replicas", [(1, 2, 3), (2, 1, 3)])
async def test_it_ends_with_the_error_if_the_node_reaches_no_majority(
    replicas: tuple[int, ...], wait_ms: int | None, lose: Lose
) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", replicas)
        await cluster.nodes[replicas[0]].write("t", "1")
        await after(50)
        follower = None if wait_ms is not None else Follower(cluster.nodes[1], 0)
        await after(2_000)
        await lose(cluster)
        if wait_ms is not None:
            await after(wait_ms)
        began_ms = LoopClock().now_ms()
        await ends_unavailable(cluster, follower or Follower(cluster.nodes[1], 0), began_ms)


@virtual
@pytest.mark.parametrize("lose", [stopped, killed])
async def test_it_ends_with_the_error_on_a_node_without_a_copy(lose: Lose) -> None:
    """No replica answers. Nodes that are silent, one after the other, do not make the wait longer."""
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 3))
        await cluster.nodes[2].write("t", "1")
        follower = Follower(cluster.nodes[1], 0)
        await after(2_000)
        await lose(cluster)
        await ends_unavailable(cluster, follower, LoopClock().now_ms())


@virtual
async def test_it_ends_with_the_error_if_no_replica_can_lead() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1), min_insync_replicas="1")
        await cluster.kill(1)
        await cluster.until(lambda: cluster.isr_of("t") == (2,))
        await cluster.nodes[2].write("t", "1")
        await cluster.restart(1)
        follower = Follower(cluster.nodes[3], 0)
        await after(1)
        await cluster.kill(2)
        await ends_unavailable(cluster, follower, LoopClock().now_ms())


@virtual
@pytest.mark.parametrize("asked", [1, 2, 3])
async def test_an_offset_above_the_end_of_a_topic_made_again_is_not_told_as_out_of_range(
    asked: int,
) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2))
        await cluster.nodes[1].write("t", "1")
        follower = Follower(cluster.nodes[asked], 9, topic_tag="0" * 12)
        await cluster.until(follower.task.done)
        assert isinstance(follower.error, OffsetOutOfRangeError)
        assert "made again" in follower.error.message


async def ends_unavailable(cluster: Cluster, follower: Follower, began_ms: int) -> None:
    """The stream tries for its time, sends comments meanwhile, and ends with the error."""
    await cluster.until(follower.task.done, timeout_ms=120_000)
    assert isinstance(follower.error, UnavailableError)
    assert follower.records == 1
    took_ms = LoopClock().now_ms() - began_ms
    assert RETRY_S_TOTAL * 1000 < took_ms < KEEP_ALIVE_MS + RETRY_S_TOTAL * 1000 + 2 * LAG_MS
    assert follower.longest_silence_ms <= KEEP_ALIVE_MS


@virtual
@pytest.mark.parametrize("follows_on", [1, 2, 3])
@pytest.mark.parametrize("new_records", [0, 1, 3, 9])
async def test_it_ends_at_once_if_its_topic_is_made_again_at_once(
    follows_on: int, new_records: int
) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2))
        for value in "123":
            await cluster.nodes[1].write("t", value)
        await after(50)
        follower = Follower(cluster.nodes[follows_on], 0)
        await after(2_000)
        assert follower.records == 3
        topic = cluster.image.topic("t")
        assert topic is not None
        metadata = cluster.nodes[1].metadata
        await asyncio.gather(
            metadata.propose(DeleteTopic(topic_id=topic.topic_id), timeout_ms=2_000),
            metadata.propose(
                CreateTopic(
                    topic_id=cluster.new_topic_id(), name="t", configs=(), placement=((1, 2),)
                ),
                timeout_ms=2_000,
            ),
        )
        began_ms = LoopClock().now_ms()
        await cluster.until(lambda: cluster.is_led("t"))
        for _ in range(new_records):
            await cluster.nodes[1].write("t", "9")
        await cluster.until(follower.task.done, timeout_ms=120_000)
        assert LoopClock().now_ms() - began_ms < LAG_MS
        assert isinstance(follower.error, OffsetOutOfRangeError), follower.error
        assert "made again" in follower.error.message
        assert follower.records == 3
