"""v3: partitions and replicas of a topic."""

from aiohttp import web

from http_api.describing.params import ChoiceParam
from http_api.protocol.errors import ResourceNotFoundError
from http_api.serving.call import Call
from http_api.serving.lookup import find_partition, find_topic, partitions_of
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
        **links.item("KafkaPartition", parts, f"/topic={topic}/partition={partition}"),
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
    url = links.url("topics", topic.name, "partitions")
    return item_answer(links.listing("KafkaPartitionList", url, items))


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
    name = f"/topic={topic}/partition={partition}/replica={broker_id}"
    return {
        **links.item("KafkaReplica", parts, name),
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
    url = links.url("topics", topic.name, "partitions", partition, "replicas")
    return item_answer(links.listing("KafkaReplicaList", url, items))


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
    image = call.ports.metadata.image
    broker_id = find_broker(call).broker_id
    is_seen = call.rights.seen(ResourceType.TOPIC)
    items = [
        _replica(links, topic.name, partition, state, broker_id)
        for name, topic_id in sorted(image.topic_ids.items())
        if is_seen(name)
        for topic in (image.topics[topic_id],)
        for partition, state in partitions_of(call, topic)
        if broker_id in state.replicas
    ]
    url = links.url("brokers", broker_id, "partition-replicas")
    return item_answer(links.listing("KafkaReplicaList", url, items))
