"""Rules of leaders that end transactions in their logs, and those that nobody else ends."""

import asyncio

import pytest

from node.services.transactions import sight
from raft_meta.machine import codec
from raft_meta.machine.commands import FinishMarkers
from tests.support.clusters.nodes import SimNode, cluster_of
from tests.support.clusters.transacting import commit_of, read, send, two_topics
from tests.support.time.virtual_time import after, virtual
from tests.unit.node.services.test_produce import move_leader

HOUR_MS = 3_600_000


def finishes(node: SimNode) -> int:
    """How often it told the quorum of markers."""
    envelopes = map(codec.decode_envelope, node.quorum.proposed)
    return sum(isinstance(envelope.command, FinishMarkers) for envelope in envelopes)


@virtual
async def test_a_marker_of_which_the_quorum_did_not_hear_is_told_again() -> None:
    async with cluster_of() as cluster:
        await two_topics(cluster)
        one = await cluster.nodes[2].transactions.begin("me", timeout_ms=60_000)
        end = await send(cluster, 2, one, "t", "a")
        leader = cluster.nodes[1]
        propose = leader.quorum.propose

        async def refuse(command: bytes, *, timeout_ms: int) -> bytes:
            if isinstance(codec.decode_envelope(command).command, FinishMarkers):
                leader.quorum.propose = propose
                leader.quorum.faults.append("refused")
            answer: bytes = await propose(command, timeout_ms=timeout_ms)
            return answer

        leader.quorum.propose = refuse
        await cluster.nodes[2].transactions.commit(commit_of(one, ("t", end, 1)))
        await cluster.until(lambda: not cluster.image.ending, timeout_ms=5_000)
        assert finishes(leader) == 2


@virtual
async def test_a_leader_whose_clock_is_behind_aborts_it_when_it_has_led_for_so_long() -> None:
    async with cluster_of() as cluster:
        await two_topics(cluster)
        cluster.nodes[2].machine_clock.skew_ms = -HOUR_MS
        one = await cluster.nodes[1].transactions.begin("me", timeout_ms=5_000)
        await send(cluster, 1, one, "t", "slow")
        await move_leader(cluster, 2)
        await after(4_000)
        assert cluster.runner(2, "t").log.writers.transactions.open
        await after(2_000)
        assert not cluster.runner(2, "t").log.writers.transactions.open
        await cluster.nodes[1].write("t", "on")
        assert await read(cluster, 3, "t") == ["on"]


@virtual
async def test_who_leads_no_more_ends_nothing_before_it_has_heard_of_that() -> None:
    """Its image may be ahead of its replicas for a turn of the loop."""
    async with cluster_of() as cluster:
        await two_topics(cluster)
        former = cluster.nodes[1]
        await send(cluster, 1, await former.transactions.begin("open", timeout_ms=60_000), "t", "x")
        cluster.isolate(1)
        await cluster.until(lambda: cluster.leader_of("t") not in (1, None), timeout_ms=30_000)
        await cluster.until(lambda: cluster.is_led("t"))
        leader_id = cluster.leader_of("t")
        assert leader_id is not None
        leader = cluster.nodes[leader_id]
        leader.transaction_ends.finish = lambda key, identity: None
        one = await leader.transactions.begin("me", timeout_ms=60_000)
        end = await send(cluster, leader_id, one, "t", "a")
        await leader.transactions.commit(commit_of(one, ("t", end, 1)))
        assert cluster.image.ending
        cluster.heal()
        assert cluster.runner(1, "t").leader is not None
        former.metadata._seen = former.machine.image
        former.transaction_markers._look()
        await after(1_000)
        assert finishes(former) == 0
        assert cluster.image.ending


@virtual
async def test_the_quorum_hears_of_a_marker_once_it_is_committed() -> None:
    async with cluster_of() as cluster:
        await two_topics(cluster)
        one = await cluster.nodes[2].transactions.begin("me", timeout_ms=60_000)
        end = await send(cluster, 2, one, "t", "a")
        leader, log = cluster.nodes[1], cluster.runner(1, "t").log
        for follower in (2, 3):
            cluster.nodes[follower].pool.hold()
        commit = asyncio.ensure_future(
            cluster.nodes[2].transactions.commit(commit_of(one, ("t", end, 1)))
        )
        await cluster.until(lambda: log.log_end_offset == 2)
        assert not log.writers.transactions.open
        await after(500)
        assert finishes(leader) == 0
        for follower in (2, 3):
            cluster.nodes[follower].pool.release()
        assert (await commit).is_visible
        await cluster.until(lambda: not cluster.image.ending)
        assert finishes(leader) == 1


@virtual
async def test_the_quorum_hears_of_many_markers_at_once_and_readers_do_not_wait_for_that() -> None:
    async with cluster_of() as cluster:
        await two_topics(cluster)
        node, leader = cluster.nodes[2], cluster.nodes[1]
        for number in range(5):
            one = await node.transactions.begin(f"me {number}", timeout_ms=60_000)
            end = await send(cluster, 2, one, "t", "a")
            assert (await node.transactions.commit(commit_of(one, ("t", end, 1)))).is_visible
        (endings,) = cluster.image.ending.values()
        assert len(endings) == 5
        assert finishes(leader) == 0
        await cluster.until(lambda: not cluster.image.ending)
        assert finishes(leader) == 1


@virtual
async def test_who_may_not_ask_the_leaders_sees_it_with_the_quorum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sight, "ASKING_MAX", 0)
    async with cluster_of() as cluster:
        await two_topics(cluster)
        node, leader = cluster.nodes[2], cluster.nodes[1]
        one = await node.transactions.begin("me", timeout_ms=60_000)
        end = await send(cluster, 2, one, "t", "a")
        assert (await node.transactions.commit(commit_of(one, ("t", end, 1)))).is_visible
        assert finishes(leader) == 1
        assert not cluster.image.ending


@virtual
async def test_a_leader_that_stops_does_not_stay_for_markers_that_the_next_one_finds() -> None:
    async with cluster_of() as cluster:
        await two_topics(cluster)
        node, leader = cluster.nodes[2], cluster.nodes[1]
        one = await node.transactions.begin("me", timeout_ms=60_000)
        end = await send(cluster, 2, one, "t", "a")
        await node.transactions.commit(commit_of(one, ("t", end, 1)))
        before_ms = leader.clock.now_ms()
        await leader.transaction_ends.close()
        assert leader.clock.now_ms() == before_ms
        assert finishes(leader) == 0
        await move_leader(cluster, 2)
        await cluster.until(lambda: not cluster.image.ending)
        assert finishes(node) == 1
