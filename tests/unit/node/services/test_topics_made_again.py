"""Rules of what clients keep of a topic that is deleted and made again under its name."""

from collections.abc import Awaitable, Callable

import pytest

from http_api.ports.groups import TopicOffset
from milena.model.errors import PreconditionFailedError, TopicNotFoundError
from milena.model.requests import (
    Acks,
    CommittedNext,
    GroupOffsets,
    ProduceRequest,
    Records,
    TransactionRequest,
)
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.runners import batch
from tests.support.time.virtual_time import virtual

Commit = Callable[[Cluster, int, str], Awaitable[None]]


async def made_again(cluster: Cluster) -> tuple[str, str]:
    """A topic with one record whose predecessor had one, too; ids of both."""
    ids = []
    for value in ("a", "b"):
        await cluster.create("t", (2, 1))
        await cluster.nodes[2].write("t", value)
        topic = cluster.image.topic("t")
        assert topic is not None
        ids.append(topic.topic_id)
        if value == "a":
            await cluster.nodes[2].admin.delete_topic("t")
            await cluster.until(lambda: cluster.image.topic("t") is None)
    return ids[0], ids[1]


async def write_if(cluster: Cluster, node_id: int, tag: str, *, is_encoded: bool) -> None:
    produce = cluster.nodes[node_id].produce
    if is_encoded:
        await produce.produce_batch(
            "t",
            0,
            batch("c"),
            acks=Acks.ALL,
            timeout_ms=2_000,
            expected_end=1,
            topic_tag=tag,
        )
        return
    request = ProduceRequest(
        topic="t",
        records=Records(keys=None, values=[b"c"]),
        acks=Acks.ALL,
        timeout_ms=2_000,
        partition=0,
        expected_end=1,
        topic_tag=tag,
    )
    await produce.produce(request)


@virtual
@pytest.mark.parametrize("asked", [1, 2, 3])
@pytest.mark.parametrize("is_encoded", [False, True])
async def test_a_condition_on_the_former_topic_does_not_hold_for_the_new_one(
    asked: int, is_encoded: bool
) -> None:
    async with cluster_of() as cluster:
        old, new = await made_again(cluster)
        assert old != new
        with pytest.raises(PreconditionFailedError, match="made again"):
            await write_if(cluster, asked, old[:12], is_encoded=is_encoded)
        await write_if(cluster, asked, new[:12], is_encoded=is_encoded)
        assert await cluster.nodes[asked].read("t") == ["b", "c"]


@virtual
@pytest.mark.parametrize("is_encoded", [False, True])
async def test_a_condition_on_a_deleted_topic_makes_none(is_encoded: bool) -> None:
    async with cluster_of() as cluster:
        object.__setattr__(cluster.nodes[1].admin.defaults, "is_auto_create", True)
        with pytest.raises(
            TopicNotFoundError, match="'t' does not exist, and this request may not"
        ):
            await write_if(cluster, 1, "abcdefabcdef", is_encoded=is_encoded)
        assert (await cluster.nodes[1].admin.current_image()).topic("t") is None


@virtual
@pytest.mark.parametrize("asked", [1, 2, 3])
async def test_every_read_tells_which_topic_it_is_of(asked: int) -> None:
    async with cluster_of() as cluster:
        _, new = await made_again(cluster)
        node = cluster.nodes[asked]
        for offset in ("earliest", "latest", 0, 1, -1):
            assert (await node.fetch("t", offset)).topic_id == new
        assert (await node.reads.offsets("t", 0)).topic_id == new


async def commit(cluster: Cluster, node_id: int, topic_id: str) -> None:
    row = TopicOffset(topic="t", partition=0, offset=1, topic_id=topic_id)
    await cluster.nodes[node_id].groups.service.commit("g", [row])


async def commit_in_a_transaction(cluster: Cluster, node_id: int, topic_id: str) -> None:
    row = CommittedNext(topic="t", partition=0, next_offset=1, topic_id=topic_id)
    offsets = GroupOffsets(group="g", member_id=None, member_epoch=-1, offsets=(row,))
    await cluster.nodes[node_id].transactions.transact(
        TransactionRequest(writes=(), offsets=(offsets,), timeout_ms=5_000)
    )


@virtual
@pytest.mark.parametrize("asked", [1, 2, 3])
@pytest.mark.parametrize("way", [commit, commit_in_a_transaction])
async def test_an_offset_of_the_former_topic_is_not_committed_to_the_new_one(
    way: Commit, asked: int
) -> None:
    async with cluster_of() as cluster:
        old, new = await made_again(cluster)
        for topic_id in (old, old[:12]):
            with pytest.raises(TopicNotFoundError, match="deleted"):
                await way(cluster, asked, topic_id)
        assert "g" not in cluster.image.groups
        for topic_id in (new, new[:12], ""):
            await way(cluster, asked, topic_id)
        (found,) = await cluster.nodes[asked].groups.service.committed("g")
        assert found.offset == 1
