"""Rules of reads without a wait: they return what a fetch would, or nothing, and nothing that a node has to ask for."""

import random
from dataclasses import replace

import pytest

from milena.model.requests import FetchRequest
from node.metadata.store import MetadataStore
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.overtaken import overtaken, written
from tests.support.clusters.runners import values_of
from tests.support.clusters.transacting import send, two_topics
from tests.support.time.virtual_time import after, virtual
from tests.unit.node.services.test_cold_reads import SlowDisk

FOLLOWER, LEADER, OTHER = 1, 2, 3


def asked(offset: int | str, *, max_bytes: int = 1 << 20, topic: str = "t") -> FetchRequest:
    return FetchRequest(
        topic=topic,
        partition=0,
        offset=offset,
        timestamp_ms=None,
        max_bytes=max_bytes,
        timeout_ms=0,
        is_local=False,
    )


def at_once(cluster: Cluster, node_id: int, request: FetchRequest) -> list[str] | None:
    found = cluster.nodes[node_id].reads.fetch_at_once(request)
    return None if found is None else values_of(found.batches)


@virtual
async def test_a_leader_returns_exactly_what_a_fetch_returns() -> None:
    chance = random.Random(7)
    async with cluster_of() as cluster:
        await written(
            cluster, *(chr(97 + number) * chance.randrange(1, 90) for number in range(20))
        )
        reads = cluster.nodes[LEADER].reads
        for _ in range(100):
            request = asked(chance.randrange(20), max_bytes=chance.randrange(1, 2_000))
            assert reads.fetch_at_once(request) == await reads.fetch(request)


@virtual
async def test_it_counts_what_it_returns_as_a_fetch_does() -> None:
    async with cluster_of() as cluster:
        await written(cluster, "a", "b")
        counts = cluster.runner(LEADER, "t").counts
        cluster.nodes[LEADER].reads.fetch_at_once(asked(0))
        once = (counts.records_out, counts.bytes_out)
        await cluster.nodes[LEADER].fetch("t", 0)
        assert (counts.records_out, counts.bytes_out) == (2 * once[0], 2 * once[1])
        assert once[0] == 2


@virtual
@pytest.mark.parametrize("offset", ["earliest", "latest", -1, 2, 3])
async def test_what_depends_on_the_end_of_the_log_is_left_to_a_fetch(offset: int | str) -> None:
    async with cluster_of() as cluster:
        await written(cluster, "a", "b")
        assert at_once(cluster, LEADER, asked(offset)) is None


@virtual
async def test_times_other_topics_and_other_partitions_are_left_to_a_fetch() -> None:
    async with cluster_of() as cluster:
        await written(cluster, "a")
        for request in (
            replace(asked(0), timestamp_ms=1),
            replace(asked(0), partition=7),
            replace(asked(0), partition=-1),
            replace(asked(0), wants_records_end=True),
            asked(0, topic="none"),
        ):
            assert at_once(cluster, LEADER, request) is None


@virtual
async def test_a_node_without_a_copy_returns_nothing() -> None:
    async with cluster_of() as cluster:
        await written(cluster, "a")
        assert at_once(cluster, OTHER, asked(0)) is None


@virtual
async def test_a_follower_returns_only_what_ends_before_its_end() -> None:
    """At its own end, it would have to ask the leader for more."""
    async with cluster_of() as cluster:
        await written(cluster, "a", "b")
        assert at_once(cluster, FOLLOWER, asked(0, max_bytes=1)) == ["a"]
        assert at_once(cluster, FOLLOWER, asked(0)) is None
        assert at_once(cluster, FOLLOWER, asked(1)) is None
        assert at_once(cluster, FOLLOWER, replace(asked(0), is_local=True)) == ["a", "b"]


@virtual
async def test_uncommitted_records_are_not_returned() -> None:
    async with cluster_of() as cluster:
        await written(cluster, "a")
        runner = cluster.runner(LEADER, "t")
        assert runner.leader is not None
        end = runner.high_watermark
        assert at_once(cluster, LEADER, asked(end)) is None
        await cluster.nodes[LEADER].write("t", "b")
        assert at_once(cluster, LEADER, asked(end)) == ["b"]


@virtual
async def test_records_on_the_disk_are_not_waited_for() -> None:
    async with cluster_of() as cluster:
        await written(cluster, "a")
        disk = SlowDisk(cluster.runner(LEADER, "t"))
        assert at_once(cluster, LEADER, asked(0)) is None
        assert not disk.under_way
        disk.is_warm = True
        assert at_once(cluster, LEADER, asked(0)) == ["a"]


@virtual
async def test_a_leader_of_an_earlier_epoch_than_the_image_has_returns_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster_of() as cluster:
        await overtaken(cluster)
        assert at_once(cluster, LEADER, asked(0)) == ["a", "b"]
        runner = cluster.runner(LEADER, "t")
        image, key = cluster.nodes[1].metadata.image, (runner.topic_id, 0)
        assert image.partitions[key].leader_epoch > runner.leader_epoch
        # The image has the change, and the replica has not been told yet.
        monkeypatch.setattr(MetadataStore, "image", image)
        assert at_once(cluster, LEADER, asked(0)) is None


@virtual
async def test_records_of_aborted_transactions_are_left_to_a_fetch() -> None:
    async with cluster_of() as cluster:
        await two_topics(cluster)
        service = cluster.nodes[1].transactions
        aborted = await service.begin("other", timeout_ms=60_000)
        await cluster.nodes[1].write("t", "a")
        await send(cluster, 1, aborted, "t", "b")
        await service.abort(aborted, timeout_ms=1_000)
        await after(500)
        assert cluster.runner(1, "t").log.writers.transactions.aborted
        assert at_once(cluster, 1, asked(0)) is None
        found = at_once(cluster, 1, replace(asked(0), is_uncommitted=True))
        assert found is not None
        assert found[:2] == ["a", "b"]
