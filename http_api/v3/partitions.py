"""v3: partitions and replicas of a topic."""

from aiohttp import web

from http_api.describing.params import ChoiceParam
from http_api.protocol.errors import ResourceNotFoundError
from http_api.serving.call import Call
from http_api.serving.lookup import find_partition, find_topic, partitions_of, seen_topics
from http_api.v3.clusters import find_broker
from http_api.v3.resources import Links, Resource, item_answer
from milena.model.access import ResourceType
from raft_meta.machine.image import Partition

OFFSET_TYPE = ChoiceParam(
    name="offset_type",
    description="which offsets; there is only one choice",
    words={"earliest_and_latest": None},
    hint="earliest_and_latest",
)


def _partition(links: Links, topic: str, partition: int, state: Partition) -> Resource:
    parts = ("topics", topic, "partitions", partition)
    leader = None if state.leader is None else links.related(*parts, "replicas", state.leader)
    return {
        **links.item("KafkaPartition", *parts),
        "topic_name": topic,
        "partition_id": partition,
        "leader": leader,
        "replicas": links.related(*parts, "replicas"),
        "reassignment": None if state.moving is None else links.related(*parts, "reassignment"),
    }


async def list_partitions(call: Call) -> web.Response:
    """Return all partitions of a topic."""
    links = Links(call)
    topic = await find_topic(call)
    items = [_partition(links, topic.name, p, state) for p, state in partitions_of(call, topic)]
    return links.listing("KafkaPartitionList", items, "topics", topic.name, "partitions")


async def get_partition(call: Call) -> web.Response:
    """Return one partition."""
    links = Links(call)
    topic, partition, state = await find_partition(call)
    return item_answer(_partition(links, topic.name, partition, state))


async def get_offset(call: Call) -> web.Response:
    """Return one partition with its first offset and its end."""
    links = Links(call)
    OFFSET_TYPE.read(call.query())
    topic, partition, state = await find_partition(call)
    offsets = await call.ports.reads.offsets(topic.name, partition)
    return item_answer(
        {
            **_partition(links, topic.name, partition, state),
            "kind": "KafkaPartitionWithOffsets",
            "earliest_offset": offsets.log_start_offset,
            "latest_offset": offsets.high_watermark,
        }
    )


def _replica(
    links: Links, topic: str, partition: int, state: Partition, broker_id: int
) -> Resource:
    parts = ("topics", topic, "partitions", partition, "replicas", broker_id)
    return {
        **links.item("KafkaReplica", *parts),
        "topic_name": topic,
        "partition_id": partition,
        "broker_id": broker_id,
        "is_leader": broker_id == state.leader,
        "is_in_sync": broker_id in state.isr,
        "broker": links.related("brokers", broker_id),
    }


async def list_replicas(call: Call) -> web.Response:
    """Return all replicas of a partition, the preferred leader first."""
    links = Links(call)
    topic, partition, state = await find_partition(call)
    items = [_replica(links, topic.name, partition, state, id_) for id_ in state.replicas]
    return links.listing(
        "KafkaReplicaList", items, "topics", topic.name, "partitions", partition, "replicas"
    )


async def get_replica(call: Call) -> web.Response:
    """Return one replica of a partition."""
    links = Links(call)
    topic, partition, state = await find_partition(call)
    text = call.names["broker"]
    for broker_id in state.replicas:
        if str(broker_id) == text:
            return item_answer(_replica(links, topic.name, partition, state, broker_id))
    raise ResourceNotFoundError(f"broker '{text}' holds no replica of {topic.name}-{partition}")


async def list_broker_replicas(call: Call) -> web.Response:
    """Return all replicas that a broker holds."""
    links = Links(call)
    broker_id = find_broker(call).broker_id
    topics = seen_topics(call, call.rights.seen(ResourceType.TOPIC))
    items = [
        _replica(links, topic.name, partition, state, broker_id)
        for topic in topics
        for partition, state in partitions_of(call, topic)
        if broker_id in state.replicas
    ]
    return links.listing("KafkaReplicaList", items, "brokers", broker_id, "partition-replicas")
