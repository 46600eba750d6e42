"""Rules of what clients keep of a topic that is deleted and made again under its name."""

import pytest

from milena.model.errors import PreconditionFailedError
from milena.model.requests import Acks, ProduceRequest, Records
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.runners import batch
from tests.support.time.virtual_time import virtual


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
@pytest.mark.parametrize("asked", [1, 2, 3])
async def test_every_read_tells_which_topic_it_is_of(asked: int) -> None:
    async with cluster_of() as cluster:
        _, new = await made_again(cluster)
        node = cluster.nodes[asked]
        for offset in ("earliest", "latest", 0, 1, -1):
            assert (await node.fetch("t", offset)).topic_id == new
        assert (await node.reads.offsets("t", 0)).topic_id == new
