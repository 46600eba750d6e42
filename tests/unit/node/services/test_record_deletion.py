"""Rules of deleting records: durable on the leader, on whoever may lead next, and never above what is committed."""

import asyncio

import pytest

from milena.model.errors import (
    FateUnknownError,
    FeatureLevelError,
    InvalidRequestError,
    MalformedRequestError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    TopicNotFoundError,
)
from milena.model.requests import Acks, IdempotencyKey, ProduceRequest, Records
from node.services.messages import DELETE_RECORDS
from tests.support.clusters.nodes import Cluster, cluster_of, outcome
from tests.support.clusters.overtaken import overtaken
from tests.support.clusters.transacting import send, two_topics
from tests.support.time.virtual_time import after, virtual


async def filled(cluster: Cluster, count: int = 6, *placement: tuple[int, ...]) -> None:
    """A topic ``t`` led by node 1, with records of one batch each."""
    await cluster.create("t", *(placement or ((1, 2, 3),)))
    for number in range(count):
        receipt = (await cluster.nodes[1].write("t", f"v{number}"))[0]
        assert receipt.offset == number


async def led_again(cluster: Cluster) -> None:
    """A leader has taken over, and every node knows it."""

    def is_known() -> bool:
        indexes = {node.metadata.image.index for node in cluster.nodes.values()}
        return len(indexes) == 1 and cluster.is_led("t")

    await cluster.until(is_known)


def starts(cluster: Cluster) -> list[int]:
    return [cluster.runner(i, "t").log.log_start_offset for i in sorted(cluster.nodes)]


@virtual
async def test_every_in_sync_replica_has_deleted_it_when_the_answer_comes() -> None:
    async with cluster_of(Cluster(network_ms=lambda rng: rng.uniform(0, 20))) as cluster:
        await filled(cluster)
        assert await cluster.nodes[1].delete_records("t", 4) == 4
        assert starts(cluster) == [4, 4, 4]
        assert await cluster.nodes[2].read("t") == ["v4", "v5"]
        with pytest.raises(OffsetOutOfRangeError, match="deleted; the first one is 4"):
            await cluster.nodes[1].fetch("t", 3)


@virtual
async def test_a_leader_that_was_replaced_does_not_say_where_the_end_is() -> None:
    async with cluster_of() as cluster:
        await overtaken(cluster)
        assert await cluster.nodes[2].delete_records("t", 3) == 3
        assert await cluster.nodes[1].read("t") == []


@virtual
async def test_any_node_passes_it_on_to_the_leader() -> None:
    async with cluster_of() as cluster:
        await filled(cluster)
        assert await cluster.nodes[3].delete_records("t", 2) == 2
        assert await cluster.nodes[2].delete_records("t", None) == 6
        assert starts(cluster) == [6, 6, 6]
        assert (await cluster.nodes[3].write("t", "next"))[0].offset == 6


@virtual
async def test_to_delete_again_or_less_changes_nothing() -> None:
    async with cluster_of() as cluster:
        await filled(cluster)
        assert await cluster.nodes[1].delete_records("t", 5) == 5
        assert await cluster.nodes[2].delete_records("t", 5) == 5
        assert await cluster.nodes[1].delete_records("t", 0) == 5
        assert starts(cluster) == [5, 5, 5]


@virtual
async def test_nothing_above_the_high_watermark_goes() -> None:
    async with cluster_of() as cluster:
        await filled(cluster)
        for node_id in (1, 2):
            with pytest.raises(OffsetOutOfRangeError, match="above its end, 6"):
                await cluster.nodes[node_id].delete_records("t", 7)
        assert starts(cluster) == [0, 0, 0]


@virtual
async def test_what_is_not_there_is_named() -> None:
    async with cluster_of() as cluster:
        await filled(cluster, 1)
        with pytest.raises(TopicNotFoundError):
            await cluster.nodes[1].delete_records("nope", 0)
        with pytest.raises(PartitionNotFoundError):
            await cluster.nodes[1].delete_records("t", 0, partition=1)


@virtual
async def test_a_power_cut_of_all_nodes_brings_nothing_back() -> None:
    async with cluster_of() as cluster:
        await filled(cluster)
        await cluster.nodes[1].delete_records("t", 4)
        for node_id in (1, 2, 3):
            await cluster.kill(node_id, power=True)
        for node_id in (1, 2, 3):
            await cluster.restart(node_id)
        await led_again(cluster)
        assert starts(cluster) == [4, 4, 4]
        assert await cluster.nodes[2].read("t") == ["v4", "v5"]


@virtual
async def test_no_new_leader_brings_it_back() -> None:
    async with cluster_of(Cluster(network_ms=lambda rng: rng.uniform(0, 20))) as cluster:
        await filled(cluster)
        await cluster.nodes[1].delete_records("t", 4)
        await cluster.kill(1)
        await led_again(cluster)
        assert await cluster.nodes[2].read("t") == ["v4", "v5"]
        assert await cluster.nodes[3].read("t") == ["v4", "v5"]


@virtual
async def test_too_few_in_sync_replicas_refuse_and_delete_nothing() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3), min_insync_replicas="3")
        await cluster.nodes[1].write("t", "a")
        await cluster.kill(3)
        await cluster.until(lambda: cluster.isr_of("t") == (1, 2))
        await led_again(cluster)
        for node_id in (1, 2):
            with pytest.raises(NotEnoughReplicasError, match="nothing was written"):
                await cluster.nodes[node_id].delete_records("t", 1)
        assert starts(cluster) == [0, 0]


@virtual
async def test_who_is_cut_off_while_it_waits_says_that_nobody_knows() -> None:
    async with cluster_of() as cluster:
        await filled(cluster)
        cluster.isolate(1)
        with pytest.raises(FateUnknownError):
            await cluster.nodes[1].delete_records("t", 4, timeout_ms=500)


@virtual
async def test_a_leader_that_dies_in_the_middle_is_followed_by_the_next() -> None:
    async with cluster_of() as cluster:
        await filled(cluster)
        # The leader deletes, but no follower hears of it.
        cluster.network.cut(1, 2)
        cluster.network.cut(1, 3)
        deleting = asyncio.ensure_future(
            cluster.nodes[1].deletions.delete_records("t", 0, 4, timeout_ms=400)
        )
        await after(50)
        assert cluster.runner(1, "t").log.log_start_offset == 4
        with pytest.raises(FateUnknownError):
            await deleting
        asking = asyncio.ensure_future(cluster.nodes[2].delete_records("t", 3, timeout_ms=10_000))
        await after(20)
        await cluster.kill(1)
        cluster.heal()
        assert await asking == 3
        assert await cluster.nodes[3].read("t") == ["v3", "v4", "v5"]


@virtual
async def test_a_follower_that_slept_joins_only_once_it_has_deleted_it_too() -> None:
    async with cluster_of(Cluster(network_ms=lambda rng: rng.uniform(0, 20))) as cluster:
        await filled(cluster)
        await cluster.kill(3)
        await cluster.until(lambda: cluster.isr_of("t") == (1, 2))
        assert await cluster.nodes[1].delete_records("t", 5) == 5
        await cluster.restart(3)
        seen = []

        def is_back() -> bool:
            joined = cluster.isr_of("t") == (1, 2, 3)
            if joined:
                seen.append(cluster.runner(3, "t").log.log_start_offset)
            return joined

        await cluster.until(is_back)
        assert seen == [5]


@virtual
async def test_what_was_never_committed_answers_no_retry_where_others_were_deleted() -> None:
    """Offset 2 is "lost" on the former leader and "v2" elsewhere; nobody has either when the former leads again."""
    lost = ProduceRequest(
        topic="t",
        records=Records(keys=None, values=[b"lost"]),
        acks=Acks.ALL,
        timeout_ms=200,
        partition=0,
        idempotency=IdempotencyKey(key_hash=b"k" * 16, body_hash=b"b" * 8),
    )
    async with cluster_of() as cluster:
        await filled(cluster, 2)
        cluster.isolate(1)
        unknown = await outcome(cluster.nodes[1].produce.produce(lost))
        assert isinstance(unknown, FateUnknownError)
        assert cluster.runner(1, "t").log.log_end_offset == 3
        await cluster.until(lambda: cluster.leader_of("t") in {2, 3})
        leader = cluster.leader_of("t") or 0
        assert (await cluster.nodes[leader].write("t", "v2"))[0].offset == 2
        assert await cluster.nodes[leader].delete_records("t", 3) == 3
        cluster.heal()
        await cluster.until(lambda: cluster.isr_of("t") == (1, 2, 3))
        await cluster.kill(leader)
        await cluster.until(lambda: cluster.leader_of("t") == 1 and cluster.is_led("t"))
        assert await outcome(cluster.nodes[1].produce.produce(lost)) == [3]
        assert await cluster.nodes[1].read("t") == ["lost"]


@virtual
async def test_a_follower_whose_release_does_not_confirm_is_named() -> None:
    async with cluster_of() as cluster:
        await filled(cluster)
        progress = cluster.runner(1, "t").leader.followers[2]  # type: ignore[union-attr]
        progress.log_start = -1
        for node_id in (1, 3):
            with pytest.raises(FeatureLevelError, match="in-sync nodes 2 are of a release"):
                await cluster.nodes[node_id].delete_records("t", 4)
        assert starts(cluster) == [0, 0, 0]


@virtual
async def test_a_leader_whose_release_knows_no_deletion_is_named() -> None:
    async with cluster_of() as cluster:
        await filled(cluster)

        async def unknown(*_: object) -> None:
            raise InvalidRequestError("this node knows no request 'delete_records'")

        cluster.network.handlers[1][DELETE_RECORDS.name] = unknown  # type: ignore[assignment]
        with pytest.raises(FeatureLevelError, match="node 1, which leads t-0"):
            await cluster.nodes[2].delete_records("t", 4)


@virtual
async def test_a_malformed_request_of_a_peer_is_refused() -> None:
    async with cluster_of() as cluster:
        with pytest.raises(MalformedRequestError):
            await cluster.nodes[1].deletions.on_delete_records(2, {"topic": 1}, b"")


@virtual
async def test_an_offset_within_a_batch_hides_what_is_below_it() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        await cluster.nodes[1].write("t", "a", "b", "c", "d")
        assert await cluster.nodes[2].delete_records("t", 2) == 2
        result = await cluster.nodes[3].fetch("t", "earliest")
        assert (result.start_offset, result.log_start_offset) == (2, 2)
        await cluster.kill(1)
        await led_again(cluster)
        assert (await cluster.nodes[2].fetch("t", "earliest")).start_offset == 2


@virtual
async def test_what_a_leader_was_told_before_it_was_ready_is_told_again() -> None:
    slow = Cluster(
        network_ms=lambda rng: rng.uniform(0, 20), disk_delay_ms=lambda rng: rng.uniform(0, 80)
    )
    async with cluster_of(slow) as cluster:
        for number in range(12):
            order = (number % 3 + 1, (number + 1) % 3 + 1, (number + 2) % 3 + 1)
            await cluster.create(f"t{number}", order)
        for number in range(12):
            assert (await cluster.nodes[1].write(f"t{number}", "a"))[0].offset == 0
            assert await cluster.nodes[2].delete_records(f"t{number}", 1) == 1


@virtual
async def test_nothing_goes_of_a_transaction_that_is_not_decided() -> None:
    async with cluster_of() as cluster:
        await two_topics(cluster)
        await cluster.nodes[1].write("t", "a")
        one = await cluster.nodes[1].transactions.begin("me", timeout_ms=60_000)
        await send(cluster, 1, one, "t", "open")
        await cluster.nodes[1].write("t", "b")
        with pytest.raises(OffsetOutOfRangeError, match="above its last stable offset, 1:"):
            await cluster.nodes[1].delete_records("t", 2)
        assert await cluster.nodes[1].delete_records("t", None) == 1
        await cluster.nodes[2].transactions.abort(one, timeout_ms=1_000)
        await cluster.until(lambda: cluster.runner(1, "t").stable_end == 4)
        assert await cluster.nodes[3].delete_records("t", None) == 4
