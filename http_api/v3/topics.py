"""v3: topics."""

from collections.abc import Mapping, Sequence

from aiohttp import web

from http_api.describing.schemas import Fields, integer_text, json_kind, parse_json
from http_api.ports.node import NewTopic
from http_api.protocol.answers import empty_answer
from http_api.protocol.errors import InvalidFieldError
from http_api.protocol.media import check_json_type
from http_api.serving.call import Call
from http_api.serving.lookup import find_topic, seen_topics
from http_api.shapes.requests import ASSIGNMENT, NEW_CONFIG, NEW_TOPIC_V3, TOPIC_CHANGE
from http_api.v3.resources import Links, Resource, cluster_id, item_answer
from milena.model.access import ResourceType
from milena.model.errors import MalformedRequestError
from raft_meta.machine.image import Topic


def topic_resource(links: Links, topic: Topic) -> Resource:
    """Return a topic in v3's form."""
    parts = ("topics", topic.name)
    return {
        **links.item("KafkaTopic", *parts),
        "topic_name": topic.name,
        "is_internal": topic.name.startswith("__"),
        "replication_factor": topic.replication_factor,
        "partitions_count": topic.partition_count,
        "partitions": links.related(*parts, "partitions"),
        "configs": links.related(*parts, "configs"),
        "partition_reassignments": links.related(*parts, "partitions", "-", "reassignment"),
    }


async def list_topics(call: Call) -> web.Response:
    """Return all topics."""
    links = Links(call)
    topics = seen_topics(call, call.rights.seen(ResourceType.TOPIC))
    items = [topic_resource(links, topic) for topic in topics]
    return links.listing("KafkaTopicList", items, "topics")


async def get_topic(call: Call) -> web.Response:
    """Return one topic."""
    links = Links(call)
    return item_answer(topic_resource(links, await find_topic(call)))


async def delete_topic(call: Call) -> web.Response:
    """Delete a topic with its records."""
    cluster_id(call)
    await call.ports.metadata.delete_topic(call.names["topic"])
    return empty_answer()


async def patch_topic(call: Call) -> web.Response:
    """Raise the number of partitions. The number is the new total, so a repeated request changes nothing."""
    links = Links(call)
    fields = Fields(await call.json_body(), "the body", TOPIC_CHANGE.fields)
    partition_count = fields.integer("partitions_count", least=1)
    if partition_count is None:
        raise InvalidFieldError("the body: 'partitions_count' is missing")
    topic = await call.ports.metadata.add_partitions(call.names["topic"], partition_count)
    return item_answer(topic_resource(links, topic))


async def create_topic(call: Call) -> web.Response:
    """Create a topic, or only check that it could be created."""
    links = Links(call)
    check_json_type(call.header("Content-Type"))
    body = await call.body.whole()
    if not body:
        raise InvalidFieldError("Payload error. Request body is empty; a topic is expected.")
    new = _new_topic(Fields(parse_json(body), "the body", NEW_TOPIC_V3.fields))
    call.rights.authorize_creation(new.name)
    topic = await call.ports.metadata.create_topic(new)
    resource = topic_resource(links, topic)
    if new.is_validate_only:
        return item_answer(resource)
    return item_answer(resource, status=201, location=links.url("topics", topic.name))


def _new_topic(fields: Fields) -> NewTopic:
    partition_count = fields.integer("partitions_count", least=1)
    replication_factor = fields.integer("replication_factor", least=1)
    assignments = _assignments(fields)
    if assignments is not None:
        _check_counts(assignments, partition_count, replication_factor)
    return NewTopic(
        name=fields.required_text("topic_name"),
        partition_count=partition_count,
        replication_factor=replication_factor,
        replicas_assignments=assignments,
        configs=fields.settings("configs", NEW_CONFIG.fields),
        is_validate_only=fields.boolean("validate_only"),
    )


def _assignments(fields: Fields) -> Mapping[int, tuple[int, ...]] | None:
    """Return replicas by partition, from ``{"0": [1, 2]}`` or a list of ``{"partition_id", "broker_ids"}``."""
    raw = fields.raw("replicas_assignments")
    if raw is None or raw in ([], {}):
        return None
    if isinstance(raw, list):
        pairs = [
            _assignment(item) for item in fields.objects("replicas_assignments", ASSIGNMENT.fields)
        ]
    elif isinstance(raw, dict):
        pairs = [
            (integer_text("replicas_assignments", partition), _broker_ids(brokers))
            for partition, brokers in raw.items()
        ]
    else:
        raise MalformedRequestError(f"replicas_assignments must be an object, not {json_kind(raw)}")
    found: dict[int, tuple[int, ...]] = {}
    for partition, brokers in pairs:
        if partition in found:
            raise InvalidFieldError(
                f"replicas_assignments names partition {partition} twice: name it once"
            )
        found[partition] = brokers
    return found


def _check_counts(
    assignments: Mapping[int, Sequence[int]], partition_count: int | None, factor: int | None
) -> None:
    """Refuse counts that contradict the assignments. Kafka refuses all counts together with assignments."""
    if partition_count not in (None, len(assignments)):
        raise InvalidFieldError(
            f"partitions_count is {partition_count}, but replicas_assignments names {len(assignments)}: "
            "leave partitions_count out, or give the same number"
        )
    for partition, brokers in assignments.items():
        if factor not in (None, len(brokers)):
            raise InvalidFieldError(
                f"replication_factor is {factor}, but replicas_assignments gives partition {partition} "
                f"{len(brokers)} replicas: leave replication_factor out, or give the same number"
            )


def _assignment(item: Fields) -> tuple[int, tuple[int, ...]]:
    partition = item.integer("partition_id", least=0)
    if partition is None:
        raise InvalidFieldError("replicas_assignments: 'partition_id' is missing")
    return partition, _broker_ids(item.raw("broker_ids"))


def _broker_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(broker) is not int for broker in value):
        raise MalformedRequestError(
            "replicas_assignments must map partitions to lists of broker ids"
        )
    return tuple(value)
