"""A leader that does not know of a planned change of leader: it has its lease, and still acts as the leader."""

from raft_meta.machine.commands import ElectLeaders, LeaderChange
from tests.support.clusters.nodes import Cluster
from tests.support.fakes.quorum import FakeQuorum
from tests.support.time.virtual_time import after


async def written(cluster: Cluster, *values: str) -> None:
    """Create a topic led by node 2, with a replica on node 1 and none on node 3, and write these values."""
    await cluster.create("t", (2, 1))
    for value in values:
        await cluster.nodes[2].write("t", value)
    await after(20)


def quorum_of(cluster: Cluster, node_id: int) -> FakeQuorum:
    quorum = cluster.nodes[node_id].metadata.quorum
    assert isinstance(quorum, FakeQuorum)
    return quorum


async def overtaken(cluster: Cluster, deaf: tuple[int, ...] = (2,)) -> None:
    """Make node 1 the leader, which acknowledges "c" after "a" and "b". The deaf nodes have not applied the change."""
    await written(cluster, "a", "b")
    quorums = [quorum_of(cluster, node_id) for node_id in deaf]
    heard = [quorum._is_reachable for quorum in quorums]
    for quorum in quorums:
        quorum._is_reachable = lambda: False
    image = cluster.nodes[1].metadata.image
    topic_id = image.topic_ids["t"]
    change = LeaderChange(
        topic_id=topic_id,
        partition=0,
        partition_epoch=image.partitions[topic_id, 0].partition_epoch,
        leader=1,
        isr=(1,),
    )
    await cluster.nodes[1].metadata.propose(
        ElectLeaders(controller_epoch=image.controller_epoch, changes=(change,)), timeout_ms=1_000
    )
    await cluster.nodes[1].write("t", "c")
    for quorum, is_reachable in zip(quorums, heard, strict=True):
        quorum._is_reachable = is_reachable
    assert cluster.runner(2, "t").leader is not None, "it has not heard of it"
    assert cluster.nodes[2].membership.has_lease
