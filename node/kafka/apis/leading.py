"""Partitions that this node leads, which are the only ones that it serves to Kafka clients, and the leaders of others.

A client that asks a node that does not lead gets NOT_LEADER_OR_FOLLOWER. Versions since KIP-951 also get the leader.
"""

from collections.abc import Iterable

from http_api.protocol.kafka_codes import KafkaCode
from node.kafka.apis.api import KafkaCall, KafkaServices
from node.kafka.apis.metadata import brokers_of
from node.kafka.wire.metadata import BrokerRow
from node.replica.runner import PartitionRunner
from raft_meta.machine.image import Topic


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
    if leader_epoch >= 0 and leader_epoch != runner.leader_epoch:
        is_past = leader_epoch < runner.leader_epoch
        return KafkaCode.FENCED_LEADER_EPOCH if is_past else KafkaCode.UNKNOWN_LEADER_EPOCH
    return runner


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
