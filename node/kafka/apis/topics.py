"""Topics and their records: CreateTopics (19), DeleteTopics (20), DeleteRecords (21), CreatePartitions (37).

Every node takes these requests, and passes a deletion of records on to the partition's leader.
Source: KIP-4, KIP-107, KIP-195, KIP-464 (-1 for the node's defaults), KIP-516 (topic ids), KIP-525 (configs in the
response).
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from http_api.ports.node import NewTopic
from http_api.protocol.kafka_codes import KafkaCode
from milena.model.access import Operation, ResourceType
from milena.model.errors import InvalidReplicationError
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.configs import source_of
from node.kafka.apis.items import (
    NO_ID,
    ItemError,
    by_topic,
    each,
    error_fields,
    invalid,
    repeated,
    twice,
    wait_ms,
)
from node.kafka.rights import needs
from node.kafka.wire import cold
from raft_meta.machine import bounds
from raft_meta.machine.image import Topic
from raft_meta.machine.topics.configs import effective

DEFAULT = -1
"""A number that a client leaves to the node."""
CONFIGS_SHOWN_MAX = 100
"""Topics of one response that have their configs. Each has 19, and the others may be described."""


# -- CreateTopics ----------------------------------------------------------------------------------


@serves(
    19,
    "CreateTopics",
    versions=(2, 7),
    access=needs("CREATE TOPIC", shows="DESCRIBE_CONFIGS TOPIC"),
    bytes_max=1 << 20,  # ten thousand names, or a thousand partitions with their brokers
)
async def _create_topics(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    ambiguous = repeated(topic.name for topic in request.topics)
    topics = list({topic.name: topic for topic in request.topics}.values())

    async def create(wanted: cold.Message) -> Topic:
        call.rights.authorize_creation(wanted.name)
        if wanted.name in ambiguous:
            raise twice("The topic")
        new = _new_topic(wanted, is_validate_only=request.validate_only)
        try:
            return await services.admin.create_topic(new)
        except InvalidReplicationError as error:
            raise ItemError(_layout_code(wanted), error.message) from error

    results = await each(topics, create, timeout_ms=request.timeout_ms)
    rows = []
    for place, (wanted, result) in enumerate(zip(topics, results, strict=True)):
        row = {"name": wanted.name, "configs": [], **error_fields(call, result)}
        if isinstance(result, Topic):
            code = KafkaCode.NONE if place < CONFIGS_SHOWN_MAX else KafkaCode.INVALID_REQUEST
            if not call.rights.seen(ResourceType.TOPIC, Operation.DESCRIBE_CONFIGS)(wanted.name):
                code = KafkaCode.TOPIC_AUTHORIZATION_FAILED
            row |= _created(result, config_code=code)
            if request.validate_only:
                row["topic_id"] = NO_ID
        rows.append(row)
    return call.answer({"topics": rows})


def _new_topic(wanted: cold.Message, *, is_validate_only: bool) -> NewTopic:
    count, factor = wanted.num_partitions, wanted.replication_factor
    assignments = {one.partition_index: tuple(one.broker_ids) for one in wanted.assignments}
    if len(assignments) != len(wanted.assignments):
        raise ItemError(
            KafkaCode.INVALID_REPLICA_ASSIGNMENT,
            "The assignments name a partition more than once: name each once.",
        )
    if assignments and not (count == DEFAULT and factor == DEFAULT):
        raise invalid(
            "The topic has assignments and also a number of partitions or a replication factor: with assignments, "
            f"both must be {DEFAULT}."
        )
    if count < 1 and count != DEFAULT:
        raise ItemError(
            KafkaCode.INVALID_PARTITIONS,
            f"A topic cannot have {count} partitions: give at least 1, or {DEFAULT} for the node's default.",
        )
    if factor < 1 and factor != DEFAULT:
        raise ItemError(
            KafkaCode.INVALID_REPLICATION_FACTOR,
            f"A topic cannot have {factor} replicas: give at least 1, or {DEFAULT} for the node's default.",
        )
    return NewTopic(
        name=wanted.name,
        partition_count=None if count == DEFAULT else count,
        replication_factor=None if factor == DEFAULT else factor,
        replicas_assignments=assignments or None,
        configs=_new_configs(wanted),
        is_validate_only=is_validate_only,
    )


def _new_configs(wanted: cold.Message) -> dict[str, str]:
    found: dict[str, str] = {}
    for config in wanted.configs:
        if config.value is None:
            raise ItemError(
                KafkaCode.INVALID_CONFIG,
                f"The config {config.name} has no value: give one, or leave the config out.",
            )
        found[config.name] = config.value
    return found


def _layout_code(wanted: cold.Message) -> KafkaCode:
    """Return the code for a layout that is not possible: Milena has one error where Kafka has three."""
    if wanted.assignments:
        return KafkaCode.INVALID_REPLICA_ASSIGNMENT
    if wanted.num_partitions > bounds.PARTITIONS_PER_REQUEST_MAX:
        return KafkaCode.INVALID_PARTITIONS
    return KafkaCode.INVALID_REPLICATION_FACTOR


def _created(topic: Topic, *, config_code: KafkaCode) -> dict[str, Any]:
    row: dict[str, Any] = {
        "topic_id": UUID(hex=topic.topic_id),
        "num_partitions": topic.partition_count,
        "replication_factor": topic.replication_factor,
    }
    if config_code:
        return {**row, "configs": None, "topic_config_error_code": config_code.value}
    row["configs"] = [
        {
            "name": config.name,
            "value": config.value,
            "read_only": False,
            "config_source": source_of(config),
            "is_sensitive": False,
        }
        for config in effective(topic).values()
    ]
    return row


# -- DeleteTopics ----------------------------------------------------------------------------------


@serves(20, "DeleteTopics", versions=(1, 6), access=needs("DELETE TOPIC"))
async def _delete_topics(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    # Up to version 5, topics are asked for by ``topic_names``, later by ``topics``.
    wanted = [(name, NO_ID) for name in request.topic_names or ()]
    wanted += [(topic.name, topic.topic_id or NO_ID) for topic in request.topics or ()]
    ambiguous = repeated(wanted)
    wanted = list(dict.fromkeys(wanted))
    names = {name for name, topic_id in wanted if topic_id == NO_ID} - {n for n, _ in ambiguous}
    ids = {topic_id for name, topic_id in wanted if name is None}

    async def delete(item: tuple[str | None, UUID]) -> tuple[str, UUID] | None:
        name, topic_id = item
        if (name is None) == (topic_id == NO_ID):
            raise invalid("A topic is deleted by its name or by its id: give one of them.")
        if item in ambiguous:
            raise twice("The topic")
        may_see = call.rights.seen(ResourceType.TOPIC)
        if name is None:
            topic = await _topic_of(services, topic_id, may_see)
            call.rights.authorize(Operation.DELETE, ResourceType.TOPIC, (topic.name,))
            if topic.name in names:
                return None  # the row of the name says that both mean one topic
        else:
            call.rights.authorize(Operation.DELETE, ResourceType.TOPIC, (name,))
            topic = await services.admin.topic(name)
            if UUID(hex=topic.topic_id) in ids:
                raise invalid(
                    "The topic is in the request by its name and by its id: give one of them."
                )
        by_id = topic.topic_id if name is None else ""
        deleted = await services.admin.delete_topic(topic.name, topic_id=by_id)
        return deleted.name, UUID(hex=deleted.topic_id)

    results = await each(wanted, delete, timeout_ms=request.timeout_ms)
    rows = []
    for item, result in zip(wanted, results, strict=True):
        if result is None:
            continue
        name, topic_id = item if isinstance(result, ItemError) else result
        rows.append({"name": name, "topic_id": topic_id, **error_fields(call, result)})
    return call.answer({"responses": rows})


async def _topic_of(
    services: KafkaServices, topic_id: UUID, may_see: Callable[[str], bool]
) -> Topic:
    topic = services.admin.image.topics.get(topic_id.hex)
    if topic is None:
        await services.admin.current_image()
        topic = services.admin.image.topics.get(topic_id.hex)
    if topic is None or not may_see(topic.name):
        raise ItemError(
            KafkaCode.UNKNOWN_TOPIC_ID, f"There is no topic with the id {topic_id.hex}."
        )
    return topic


# -- CreatePartitions ------------------------------------------------------------------------------


@serves(37, "CreatePartitions", versions=(0, 3), access=needs("ALTER TOPIC"))
async def _create_partitions(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    ambiguous = repeated(topic.name for topic in request.topics)
    topics = list({topic.name: topic for topic in request.topics}.values())

    async def grow(wanted: cold.Message) -> None:
        call.rights.authorize(Operation.ALTER, ResourceType.TOPIC, (wanted.name,))
        if wanted.name in ambiguous:
            raise twice("The topic")
        topic = await services.admin.topic(wanted.name, max(0, wanted.count - 1))
        if wanted.count <= topic.partition_count:
            # The name may belong to another topic by now, which has fewer partitions.
            await services.admin.current_image()
            topic = await services.admin.topic(wanted.name)
        if wanted.count <= topic.partition_count:
            raise ItemError(
                KafkaCode.INVALID_PARTITIONS,
                f"Topic {topic.name} has {topic.partition_count} partitions already: give a number above that, not "
                f"{wanted.count}.",
            )
        replicas = None
        if wanted.assignments is not None:
            replicas = [tuple(one.broker_ids) for one in wanted.assignments]
        try:
            await services.admin.add_partitions(
                wanted.name,
                wanted.count,
                replicas=replicas,
                is_validate_only=request.validate_only,
            )
        except InvalidReplicationError as error:
            code = (
                KafkaCode.INVALID_PARTITIONS
                if replicas is None
                else KafkaCode.INVALID_REPLICA_ASSIGNMENT
            )
            raise ItemError(code, error.message) from error

    results = await each(topics, grow, timeout_ms=request.timeout_ms)
    rows = [
        {"name": wanted.name, **error_fields(call, result)}
        for wanted, result in zip(topics, results, strict=True)
    ]
    return call.answer({"results": rows})


# -- DeleteRecords ---------------------------------------------------------------------------------

HIGH_WATERMARK = -1
"""The offset that stands for the end of the committed records."""


@serves(21, "DeleteRecords", versions=(0, 2), access=needs("DELETE TOPIC"))
async def _delete_records(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    wanted = {
        (topic.name, part.partition_index): part.offset
        for topic in request.topics
        for part in topic.partitions
    }

    async def delete(item: tuple[str, int]) -> int:
        topic, partition = item
        offset = wanted[item]
        call.rights.authorize(Operation.DELETE, ResourceType.TOPIC, (topic,))
        if offset < HIGH_WATERMARK:
            raise ItemError(
                KafkaCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} does not exist: give 0 or more, or {HIGH_WATERMARK} for the high watermark.",
            )
        before = None if offset == HIGH_WATERMARK else offset
        change = {"topic": topic, "partition": partition, "before_offset": before}
        await services.admin.note("delete_records", change, timeout_ms=wait_ms(request.timeout_ms))
        return await services.deletions.delete_records(
            topic, partition, before, timeout_ms=wait_ms(request.timeout_ms)
        )

    results = await each(list(wanted), delete, timeout_ms=request.timeout_ms)

    def row(partition: int, result: int | ItemError) -> dict[str, Any]:
        return {
            "partition_index": partition,
            "low_watermark": -1 if isinstance(result, ItemError) else result,
            "error_code": error_fields(call, result)["error_code"],
        }

    found = by_topic(
        (name, row(partition, result))
        for (name, partition), result in zip(wanted, results, strict=True)
    )
    rows = [{"name": name, "partitions": parts} for name, parts in found.items()]
    return call.answer({"topics": rows})


APIS = (_create_topics, _delete_topics, _delete_records, _create_partitions)
