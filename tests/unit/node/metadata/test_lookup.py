"""A partition that another node has just added is there for whoever asks this one for it, by every door."""

from collections.abc import Awaitable, Callable

import pytest

from http_api.ports.groups import OffsetToCommit, Reset, ResetTarget
from milena.model.errors import NoQuorumError, PartitionNotFoundError
from milena.model.requests import Acks, ProduceRequest, Records
from node.consumers.consumer_views import offset_commits
from tests.support.clusters.nodes import SimNode, cluster_of
from tests.support.clusters.runners import batch
from tests.support.time.virtual_time import virtual

ADDED = 2


async def produce_named_by_the_record(node: SimNode) -> None:
    records = Records(keys=None, values=[b"a", b"b"], partitions=[None, ADDED])
    request = ProduceRequest(topic="t", records=records, acks=Acks.ALL, timeout_ms=2_000)
    for receipt in await node.produce.produce(request):
        if receipt.error is not None:
            raise receipt.error


async def commit_as_a_rest_consumer(node: SimNode) -> None:
    row = OffsetToCommit(topic="t", partition=ADDED, offset=0, leader_epoch=-1, metadata="")
    await offset_commits([row], node.admin.topic)


DOORS: dict[str, Callable[[SimNode], Awaitable[object]]] = {
    "produce": lambda node: node.write("t", "a", partition=ADDED),
    "record by record": produce_named_by_the_record,
    "batch": lambda node: node.produce.produce_batch(
        "t", ADDED, batch("a"), acks=Acks.ALL, timeout_ms=2_000
    ),
    "fetch": lambda node: node.fetch("t", partition=ADDED),
    "delete records": lambda node: node.delete_records("t", None, partition=ADDED),
    "commit": lambda node: node.groups.service.commit(
        "g", [OffsetToCommit(topic="t", partition=p, offset=0) for p in (0, ADDED)]
    ),
    "reset": lambda node: node.groups.service.reset(
        "g", "t", [ADDED], ResetTarget(name=Reset.EARLIEST)
    ),
    "commit as a REST consumer": commit_as_a_rest_consumer,
}


@pytest.mark.parametrize("door", DOORS)
@virtual
async def test_it_is_found(door: str) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        behind = cluster.nodes[2]
        behind.quorum.is_stopped = True
        await cluster.nodes[1].admin.add_partitions("t", ADDED + 1)
        behind.quorum.is_stopped = False
        assert behind.metadata.image.topic("t").partition_count == 1, "it has not heard of it"
        await DOORS[door](behind)


@pytest.mark.parametrize("door", DOORS)
@virtual
async def test_a_majority_says_that_it_is_missing(door: str) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        with pytest.raises(PartitionNotFoundError):
            await DOORS[door](cluster.nodes[2])
        for node in (1, 3):
            await cluster.kill(node)
        with pytest.raises(NoQuorumError):
            await DOORS[door](cluster.nodes[2])
