"""v2: topics, partitions, offsets and brokers."""

from aiohttp import web

from http_api.describing.schemas import Fields
from http_api.ports.node import NewTopic
from http_api.protocol.answers import Pairs, empty_answer, json_answer
from http_api.protocol.media import metadata_type
from http_api.records.conditions import etag
from http_api.serving.call import Call
from http_api.serving.lookup import find_partition, find_topic, partition_number, partitions_of
from http_api.serving.openapi import MILENA_VERSION
from http_api.shapes.requests import NEW_CONFIG, NEW_TOPIC_V2
from milena.model.access import ResourceType
from raft_meta.machine.image import Partition
from raft_meta.machine.topics.configs import effective


def _answer(call: Call, value: object, headers: Pairs = ()) -> web.Response:
    return json_answer(value, content_type=metadata_type(call.header("Accept")), headers=headers)


async def root(call: Call) -> web.Response:
    """Return the version, the cluster and the node."""
    metadata = call.ports.metadata
    return _answer(
        call,
        {
            "milena_version": MILENA_VERSION,
            "cluster_id": metadata.image.cluster_id,
            "node_id": metadata.node_id,
        },
    )


async def list_topics(call: Call) -> web.Response:
    """Return the names of all topics."""
    is_seen = call.rights.seen(ResourceType.TOPIC)
    return _answer(call, sorted(filter(is_seen, call.ports.metadata.image.topic_ids)))


async def get_topic(call: Call) -> web.Response:
    """Return one topic: its effective configs and its partitions."""
    topic = await find_topic(call)
    return _answer(
        call,
        {
            "name": topic.name,
            "configs": {name: config.value for name, config in effective(topic).items()},
            "partitions": [
                partition_json(partition, state) for partition, state in partitions_of(call, topic)
            ],
        },
    )


def partition_json(partition: int, state: Partition) -> dict[str, object]:
    """Return a partition in v2's form; ``leader`` is -1 without a leader."""
    return {
        "partition": partition,
        "leader": -1 if state.leader is None else state.leader,
        "replicas": [
            {
                "broker": broker,
                "leader": broker == state.leader,
                "in_sync": broker in state.isr,
            }
            for broker in state.replicas
        ],
    }


async def list_partitions(call: Call) -> web.Response:
    """Return all partitions of a topic."""
    topic = await find_topic(call)
    return _answer(call, [partition_json(p, state) for p, state in partitions_of(call, topic)])


async def get_partition(call: Call) -> web.Response:
    """Return one partition: its leader and replicas."""
    _, partition, state = await find_partition(call)
    return _answer(call, partition_json(partition, state))


async def get_offsets(call: Call) -> web.Response:
    """Return a partition's first offset, its high watermark and its last stable offset."""
    partition = partition_number(call.names)
    offsets = await call.ports.reads.offsets(call.names["topic"], partition)
    return _answer(
        call,
        {
            "beginning_offset": offsets.log_start_offset,
            "end_offset": offsets.high_watermark,
            "last_stable_offset": offsets.readable_end,
        },
        headers=[etag(offsets.topic_id, offsets.high_watermark)],
    )


async def list_brokers(call: Call) -> web.Response:
    """Return the ids of the live brokers."""
    return _answer(call, {"brokers": list(call.ports.metadata.image.live_brokers())})


async def create_topic(call: Call) -> web.Response:
    """Create a topic from a body in the form of Strimzi's bridge."""
    fields = Fields(await call.json_body(), "the body", NEW_TOPIC_V2.fields)
    name = fields.required_text("topic_name")
    call.rights.authorize_creation(name)
    await call.ports.metadata.create_topic(
        NewTopic(
            name=name,
            partition_count=fields.integer("partitions_count", least=1),
            replication_factor=fields.integer("replication_factor", least=1),
            configs=fields.settings("configs", NEW_CONFIG.fields),
        )
    )
    return empty_answer(201)
