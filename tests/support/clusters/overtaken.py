"""A leader that does not know of a planned change of leader: it has its lease, and still acts as the leader."""

from collections.abc import Iterator
from contextlib import contextmanager

from raft_meta.machine.commands import ElectLeaders, LeaderChange
from raft_meta.machine.groups.coordinators import coordinator_of
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


async def elect(cluster: Cluster, *, leader: int, isr: tuple[int, ...], by: int) -> None:
    """Make a replica of t the leader, by a command of the node ``by``."""
    image = cluster.nodes[by].metadata.image
    topic_id = image.topic_ids["t"]
    change = LeaderChange(
        topic_id=topic_id,
        partition=0,
        partition_epoch=image.partitions[topic_id, 0].partition_epoch,
        leader=leader,
        isr=isr,
    )
    command = ElectLeaders(controller_epoch=image.controller_epoch, changes=(change,))
    await cluster.nodes[by].metadata.propose(command, timeout_ms=1_000)


async def overtaken(cluster: Cluster, deaf: tuple[int, ...] = (2,)) -> None:
    """Make node 1 the leader, which acknowledges "c" after "a" and "b". The deaf nodes have not applied the change."""
    await written(cluster, "a", "b")
    quorums = [quorum_of(cluster, node_id) for node_id in deaf]
    heard = [quorum._is_reachable for quorum in quorums]
    for quorum in quorums:
        quorum._is_reachable = lambda: False
    await elect(cluster, leader=1, isr=(1,), by=1)
    await cluster.nodes[1].write("t", "c")
    for quorum, is_reachable in zip(quorums, heard, strict=True):
        quorum._is_reachable = is_reachable
    assert cluster.runner(2, "t").leader is not None, "it has not heard of it"
    assert cluster.nodes[2].membership.has_lease


@contextmanager
def deaf(cluster: Cluster, node_id: int) -> Iterator[None]:
    """Let the node hear of no change in the block. After it, the node still has its old image."""
    quorum_of(cluster, node_id)._is_reachable = lambda: False
    before = cluster.nodes[node_id].metadata.image
    yield
    assert cluster.nodes[node_id].metadata.image is before
    hear_again(cluster, node_id)


def hear_again(cluster: Cluster, node_id: int) -> None:
    """Let the node reach the quorum. It still has its old image: it learns more by the next command or barrier."""
    quorum_of(cluster, node_id)._is_reachable = lambda: cluster.has_quorum(node_id)


async def created_again(cluster: Cluster, unheard: int, **configs: str) -> None:
    """Create topic t, delete it, and create it again with the configs. The unheard node knows the former topic."""
    await cluster.create("t", (1, 2))
    with deaf(cluster, unheard):
        await cluster.nodes[1].admin.delete_topic("t")
        await cluster.create("t", (1, 2), **configs)


async def former_coordinator(cluster: Cluster, group_id: str = "g") -> tuple[int, int]:
    """Give a group another coordinator. Return the former one, which has not heard of it, and a third node.

    The former one stays deaf until ``hear_again``.
    """
    later = coordinator_of(cluster.image, group_id)
    assert later is not None
    await cluster.kill(later)
    await cluster.until(lambda: coordinator_of(cluster.image, group_id) not in (later, None))
    former = coordinator_of(cluster.image, group_id)
    assert former is not None
    (third,) = set(cluster.nodes) - {former}
    cluster.log.elect(third)
    quorum = quorum_of(cluster, former)
    quorum._is_reachable = lambda: False
    await cluster.restart(later)
    await cluster.until(lambda: cluster.nodes[later].groups.calls.coordinates(group_id))
    assert cluster.nodes[former].groups.calls.coordinates(group_id), "it has not heard of it"
    return former, third
