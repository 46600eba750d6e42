"""Plans of the controller: same image, same plan; sizes that matter."""

from node.control.controller import CHANGES_MAX
from raft_meta.machine import codec
from raft_meta.machine import commands as c
from raft_meta.machine.topics import elections
from tests.support.machine.images import TOPIC_ID, Cluster


def thousand() -> Cluster:
    cluster = Cluster([None] * 3)
    cluster.create(((1, 2, 3),) * 1000)
    return cluster


def fence(cluster: Cluster, broker_id: int) -> c.FenceBroker:
    return c.FenceBroker(
        controller_epoch=1,
        broker_id=broker_id,
        broker_epoch=cluster.image.brokers[broker_id].broker_epoch,
        changes=elections.plan_fence(cluster.image, broker_id),
    )


def test_plans_come_in_the_order_of_partitions() -> None:
    cluster = thousand()
    planned = [change.partition for change in elections.plan_fence(cluster.image, 1)]
    assert planned == list(range(1000))


def test_a_plan_is_carried_out_whole_and_leaves_nothing_to_plan() -> None:
    cluster = thousand()
    applied = cluster.do(fence(cluster, 1))
    assert codec.decode_response(applied.response) == (True,) * 1000
    for plan in (elections.plan_elections, elections.plan_shrinks, elections.plan_preferred):
        assert plan(cluster.image) == ()


def test_a_command_holds_as_many_changes_as_it_says() -> None:
    """A command is at most 1 MiB."""
    change = c.LeaderChange(
        topic_id=TOPIC_ID,
        partition=9_999,
        partition_epoch=1 << 31,
        leader=100_000,
        isr=(100_000, 100_001, 100_002, 100_003, 100_004),
    )
    command = c.ElectLeaders(controller_epoch=1, changes=(change,) * CHANGES_MAX)
    assert len(codec.encode_envelope(Cluster().envelope(command))) < 1 << 20


def test_planning_changes_nothing() -> None:
    cluster = thousand()
    before = codec.image_hash(cluster.image)
    elections.plan_drain(cluster.image, 1)
    assert codec.image_hash(cluster.image) == before


def test_a_broker_without_replicas_needs_no_plan() -> None:
    assert elections.plan_fence(Cluster([None]).image, 1) == ()
    assert elections.plan_drain(Cluster([None]).image, 7) == ()
