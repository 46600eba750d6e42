"""Partitions that this node leads, the leaders of others, and the replicas that are near a client.

A client that asks a node that does not lead gets NOT_LEADER_OR_FOLLOWER. Versions since KIP-951 also get the leader.
A client may fetch records from a follower, too (KIP-392). If a client names its rack, the leader names a replica there.
"""

from collections.abc import Iterable

from http_api.protocol.kafka_codes import KafkaCode
from node.config.budgets import READ_LEADER_WAIT_MS
from node.kafka.apis.api import KafkaCall, KafkaServices
from node.kafka.apis.metadata import brokers_of, reachable_at
from node.kafka.wire.metadata import BrokerRow
from node.replica.runner import PartitionRunner, ReplicaRole
from raft_meta.machine.image import Topic


async def taken_over(
    services: KafkaServices, call: KafkaCall, topic: Topic | None, partition: int
) -> None:
    """Wait until the replica here leads a partition, if the image says so.

    A new leader is in the image before its replica exists or has taken over, and clients learn the leader from any
    node. Without this wait, the first requests to a new topic are refused: their clients repeat them after a pause, and
    records with acks=0 are lost. All partitions of a request together wait at most ``READ_LEADER_WAIT_MS``.
    """
    if topic is None:
        return
    state = services.metadata.image.partition(topic.topic_id, partition)
    if state is None or state.leader != services.metadata.node_id:
        return
    runner = services.replicas.find(topic.topic_id, partition)
    if runner is not None and runner.leader_epoch >= state.leader_epoch:
        return
    now_ms = services.clock.now_ms()
    if call.leaders_until_ms is None:
        call.leaders_until_ms = now_ms + READ_LEADER_WAIT_MS
    if now_ms < call.leaders_until_ms:
        await services.replicas.leading(
            topic.topic_id,
            partition,
            state.leader_epoch,
            timeout_ms=call.leaders_until_ms - now_ms,
        )


def led_here(
    services: KafkaServices, topic: Topic | None, partition: int, leader_epoch: int = -1
) -> PartitionRunner | KafkaCode:
    """Return the replica that leads a partition here, or the code of the reason why there is none.

    ``leader_epoch``: the epoch that the client believes to be current; -1: it does not know one.
    """
    if topic is None or not 0 <= partition < topic.partition_count:
        return KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    state = services.metadata.image.partition(topic.topic_id, partition)
    runner = services.replicas.find(topic.topic_id, partition)
    if state is None or state.leader != services.metadata.node_id:
        return KafkaCode.NOT_LEADER_OR_FOLLOWER
    # The image may name this node before its replica has taken over.
    if runner is None or runner.leader is None or runner.leader_epoch != state.leader_epoch:
        return KafkaCode.NOT_LEADER_OR_FOLLOWER
    return _in_epoch(runner, leader_epoch)


def _in_epoch(runner: PartitionRunner, leader_epoch: int) -> PartitionRunner | KafkaCode:
    if leader_epoch >= 0 and leader_epoch != runner.leader_epoch:
        is_past = leader_epoch < runner.leader_epoch
        return KafkaCode.FENCED_LEADER_EPOCH if is_past else KafkaCode.UNKNOWN_LEADER_EPOCH
    return runner


def followed_here(
    services: KafkaServices, topic: Topic, partition: int, leader_epoch: int = -1
) -> PartitionRunner | KafkaCode:
    """Return the replica that follows the partition's leader here, or the code of the reason why there is none.

    A node that is cut off from the quorum serves no follower: its client would wait for records that never come.
    """
    state = services.metadata.image.partition(topic.topic_id, partition)
    runner = services.replicas.find(topic.topic_id, partition)
    if (
        state is None
        or runner is None
        or runner.role is not ReplicaRole.FOLLOWER
        or runner.leader_epoch != state.leader_epoch
        or runner.is_damaged
        or runner.is_stuck
        or not services.standing.has_lease
    ):
        return KafkaCode.NOT_LEADER_OR_FOLLOWER
    return _in_epoch(runner, leader_epoch)


def nearer_replica(
    services: KafkaServices, call: KafkaCall, runner: PartitionRunner, rack: str, offset: int
) -> int | None:
    """Return the follower that a client of this rack should read from; None: it should read here, at the leader.

    It is in sync and its log reaches ``offset``. Among several, it is the one with most records.
    """
    image, own = services.metadata.image, services.metadata.node_id
    leader, here = runner.leader, image.brokers.get(own)
    if (
        not rack
        or leader is None
        or call.address.is_shared
        or (here is not None and here.rack == rack)
    ):
        return None
    found: tuple[int, int] | None = None
    for broker_id in sorted(leader.isr):
        broker = image.brokers.get(broker_id)
        progress = leader.followers.get(broker_id)
        if broker is None or broker.rack != rack or progress is None:
            continue
        end = progress.stored_end
        is_better = end >= offset and (found is None or end > found[1])
        if is_better and reachable_at(broker, call.address.listener) is not None:
            found = (broker_id, end)
    return None if found is None else found[0]


def leader_of(
    services: KafkaServices, topic: Topic | None, partition: int
) -> tuple[int, int] | None:
    """Return the leader of a partition and its epoch, as far as this node knows."""
    if topic is None:
        return None
    state = services.metadata.image.partition(topic.topic_id, partition)
    if state is None or state.leader is None:
        return None
    return state.leader, state.leader_epoch


def addresses_of(
    services: KafkaServices, call: KafkaCall, leaders: Iterable[tuple[int, int] | None]
) -> list[BrokerRow]:
    """Return the addresses of the leaders that clients can reach."""
    named = {leader[0] for leader in leaders if leader is not None}
    return [row for row in brokers_of(services, call) if row.broker_id in named] if named else []
