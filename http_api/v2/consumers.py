"""v2: REST consumers: creation, subscription or assignment, seek, deletion. Any node serves any consumer."""

from aiohttp import web

from http_api.access.callers import Caller
from http_api.describing.schemas import Fields, check_count
from http_api.formats.envelope import parse_time
from http_api.ports.groups import NewConsumer, Reset, Seek, TopicPartition, no_consumer
from http_api.protocol.answers import empty_answer, json_answer
from http_api.protocol.errors import InvalidFieldError
from http_api.protocol.media import metadata_type
from http_api.protocol.urls import base_url, path_of
from http_api.serving.call import Call
from http_api.serving.routing import check_name, check_no_dots
from http_api.serving.unknown import nearest
from http_api.shapes.groups import (
    NEW_CONSUMER,
    PARTITION_IN,
    PARTITIONS_IN,
    POSITION_IN,
    POSITIONS,
    SUBSCRIBE,
    TIME_IN,
)
from http_api.v2.tokens import read_token
from milena.model.access import ResourceType
from milena.model.batch.timestamps import TIMESTAMP_MS_MAX
from milena.model.errors import (
    ForbiddenError,
    GroupLimitError,
    InvalidConsumerError,
    MalformedRequestError,
    UnsupportedSchemaError,
)
from milena.model.quotas import QuotaKey
from raft_meta.machine.image import Image, RestConsumer

FORMATS = ("binary", "json", "text")
_SCHEMA_FORMATS = ("avro", "jsonschema", "protobuf")
_RESETS = ("latest", "earliest", "none")
COMMIT_OFFSETS = ("last", "next")

FETCH_MIN_BYTES_MAX = 10_000_000
"""The limit of ``fetch.min.bytes``, as in Confluent's REST proxy."""
REQUEST_TIMEOUT_MS_DEFAULT = 1000

_OF_OTHERS = frozenset(
    {
        "consumer.instance.timeout.ms",
        "consumer.timeout.ms",
        "fetch.max.bytes",
        "proxy.fetch.min.bytes",
        "request.timeout.ms",
    }
)
"""Settings of other servers that are similar to one of Milena's, but are not misspelt ones."""
CONSUMERS_PER_PRINCIPAL_MAX = 10_000
"""The most consumers of a principal, out of 50,000 in a cluster. A quota overrides this."""
_MISSPELT_LIKENESS = 0.8
"""The similarity from which a setting counts as misspelt. No two valid settings are so similar."""


async def place(call: Call) -> tuple[str, str]:
    """Return group and instance in the path, if the caller may use this consumer: its creator and superusers may.

    Raises:
        ConsumerNotFoundError: the consumer belongs to another principal, or does not exist; the message is the same.
    """
    group, instance = call.names["group"], call.names["instance"]
    rights = call.rights
    if not rights.known_principal:
        return group, instance
    caller = rights.caller
    if caller.is_enforced and not caller.is_superuser:
        consumer = call.ports.metadata.image.consumers.get((group, instance))
        if consumer is None:
            # The consumer may be new, so that this node does not know it yet. Ask the quorum.
            image = await call.ports.metadata.current_image()
            consumer = image.consumers.get((group, instance))
        if consumer is not None and not _is_of(consumer, caller):
            raise no_consumer(group, instance)
    return group, instance


async def place_to_read(call: Call) -> tuple[str, str]:
    """Do the same as ``place``, and require the right to read the consumer's topics.

    The check comes before records are taken from the consumer. If it came after, refused records would have to be
    delivered again.

    Raises:
        ForbiddenError: the caller may not read the topics of the consumer's subscription or assignment.
    """
    key = await place(call)
    metadata = call.ports.metadata
    try:
        _authorize_reading(call, metadata.image, key)
    except ForbiddenError:
        # The subscription may have changed a moment ago, and this node does not know it yet. Ask the quorum.
        _authorize_reading(call, await metadata.current_image(), key)
    return key


def _authorize_reading(call: Call, image: Image, key: tuple[str, str]) -> None:
    consumer = image.consumers.get(key)
    topics: set[str] = set()
    if consumer is not None:
        found = (image.topics.get(topic_id) for topic_id, _ in consumer.assigned)
        topics = {*consumer.topics, *(topic.name for topic in found if topic is not None)}
    call.rights.authorize_subscription(topics, None if consumer is None else consumer.pattern)


def _is_of(consumer: RestConsumer, caller: Caller) -> bool:
    """Return whether the caller created the consumer, or it was created when the cluster required no credentials."""
    if not consumer.principal:
        return True
    # If the consumer is older than the user, a deleted user of the same name created it.
    return consumer.principal == caller.principal and consumer.created_index > caller.user_index


async def create(call: Call) -> web.Response:
    """Create a consumer."""
    type_ = metadata_type(call.header("Accept"))
    group = call.names["group"]
    base = base_url(call.request)
    # Clients of other proxies send further settings. Ignore these, unless they look like misspelt ones.
    fields = Fields(await call.optional_json_body(), "the body", None)
    for name in fields.names() - NEW_CONSUMER.fields:
        _refuse_misspelt(name)
    consumer = _new_consumer(fields, call)
    try:
        _check_count(call)
    except GroupLimitError:
        # Consumers and groups may have been deleted a moment ago, at another node.
        await call.ports.metadata.current_image()
        _check_count(call)
    instance = await call.ports.consumers.create(group, consumer)
    uri = base + path_of("consumers", group, "instances", instance)
    return json_answer({"instance_id": instance, "base_uri": uri}, content_type=type_)


def _check_count(call: Call) -> None:
    """Refuse a consumer above a limit. Two simultaneous requests may exceed the limit by one."""
    quotas, payer = call.shared.quotas, call.payer
    call.check_groups([call.names["group"]])
    if quotas.bound(payer, QuotaKey.CONSUMER_COUNT) is not None:
        present = call.ports.metadata.image.consumer_counts.get(call.rights.known_principal, 0)
        quotas.check_count(payer, QuotaKey.CONSUMER_COUNT, present)
    else:
        _check_share(call.ports.metadata.image, call.rights.known_principal)


def _check_share(image: Image, owner: str) -> None:
    """Refuse a consumer if its principal has ``CONSUMERS_PER_PRINCIPAL_MAX``; the caller checks quotas."""
    present = image.consumer_counts.get(owner, 0)
    if owner and present >= CONSUMERS_PER_PRINCIPAL_MAX:
        raise GroupLimitError(
            f"{owner} has {present} REST consumers, and may have {CONSUMERS_PER_PRINCIPAL_MAX}: delete some that are "
            "not needed, DELETE /consumers/GROUP/instances/NAME"
        )


def _refuse_misspelt(name: str) -> None:
    """Refuse a misspelt setting. If it were ignored, its client would rely on a setting that is not in force."""
    meant = nearest(name, NEW_CONSUMER.fields, likeness=_MISSPELT_LIKENESS)
    if meant is not None and name not in _OF_OTHERS:
        raise InvalidFieldError(f"unknown setting '{name}': did you mean '{meant}'?")


def _new_consumer(fields: Fields, call: Call) -> NewConsumer:
    timeout_ms = fields.integer("consumer.request.timeout.ms", least=-1)
    min_bytes = fields.integer("fetch.min.bytes", least=-1)
    if min_bytes is not None and min_bytes > FETCH_MIN_BYTES_MAX:
        raise InvalidConsumerError(
            f"'fetch.min.bytes' is {min_bytes}; at most {FETCH_MIN_BYTES_MAX} can be waited for"
        )
    if timeout_ms is None or timeout_ms < 0:
        timeout_ms = REQUEST_TIMEOUT_MS_DEFAULT
    _check_isolation(fields)
    return NewConsumer(
        instance=_instance(fields),
        format=_format(fields),
        auto_offset_reset=_reset(fields),
        is_auto_commit=_is_auto_commit(fields),
        fetch_min_bytes=1 if min_bytes is None else min_bytes,
        request_timeout_ms=min(timeout_ms, call.ports.limits.fetch_wait_ms_max),
        principal=call.rights.known_principal,
        commits_next=_commits_next(fields, call),
    )


def _instance(fields: Fields) -> str | None:
    if not fields.has("name"):
        return None
    name = fields.required_text("name")
    check_name(name)
    check_no_dots("consumer", name)
    fields.label("name")
    return name


def _check_isolation(fields: Fields) -> None:
    level = fields.text("isolation.level")
    if level is not None and level.lower() != "read_committed":
        raise InvalidConsumerError(
            f"'isolation.level' is '{level}': REST consumers read what is committed; others are read by "
            "GET /topics/{topic}/partitions/{partition}/records?isolation=read_uncommitted"
        )


def _format(fields: Fields) -> str:
    name = (fields.text("format") or FORMATS[0]).lower()
    if name in _SCHEMA_FORMATS:
        raise UnsupportedSchemaError(
            f"'format' is '{name}', which needs a schema registry; there is none here: use json, binary or text"
        )
    if name not in FORMATS:
        raise InvalidConsumerError(
            f"Invalid format type. 'format' is '{name}': use json, binary or text"
        )
    return name


def _reset(fields: Fields) -> str:
    name = (fields.text("auto.offset.reset") or _RESETS[0]).lower()
    if name not in _RESETS:
        raise InvalidConsumerError(
            f"'auto.offset.reset' is '{name}': use {', '.join(_RESETS[:-1])} or {_RESETS[-1]}"
        )
    return name


def _commits_next(fields: Fields, call: Call) -> bool:
    name = fields.text("commit.offsets") or call.ports.limits.rest_commit_offsets
    if name.lower() not in COMMIT_OFFSETS:
        raise InvalidConsumerError(
            f"'commit.offsets' is '{name}': use {COMMIT_OFFSETS[0]} (the last record that was read) or "
            f"{COMMIT_OFFSETS[1]} (the next one)"
        )
    return name.lower() == COMMIT_OFFSETS[1]


def _is_auto_commit(fields: Fields) -> bool:
    for name in ("enable.auto.commit", "auto.commit.enable"):
        if fields.has(name):
            return fields.boolean(name)
    return True


async def delete(call: Call) -> web.Response:
    """Delete a consumer."""
    await call.ports.consumers.delete(*await place(call), token=read_token(call.query()))
    return empty_answer()


async def subscribe(call: Call) -> web.Response:
    """Replace the subscription: to topics, or to all topics whose names match a pattern."""
    token = read_token(call.query())
    fields = Fields(await call.json_body(), "the body", SUBSCRIBE.fields)
    topics, pattern = fields.strings("topics"), fields.label("topic_pattern")
    for topic in topics:
        check_name(topic)
    call.rights.authorize_subscription(topics, pattern)
    if fields.has("topics") and not topics and pattern is None:
        # As in Kafka's consumer, an empty subscription unsubscribes.
        await call.ports.consumers.unsubscribe(*await place(call), token=token)
        return empty_answer()
    await call.ports.consumers.subscribe(*await place(call), topics, pattern, token=token)
    return empty_answer()


async def unsubscribe(call: Call) -> web.Response:
    """Drop the consumer's subscription or assignment."""
    await call.ports.consumers.unsubscribe(*await place(call), token=read_token(call.query()))
    return empty_answer()


async def get_subscription(call: Call) -> web.Response:
    """Return the consumer's subscription, and the partitions of its topics that are assigned to the consumer."""
    type_ = metadata_type(call.header("Accept"))
    is_seen = call.rights.seen(ResourceType.TOPIC)
    subscription = await call.ports.consumers.subscription(*await place(call))
    by_topic: dict[str, list[int]] = {}
    for topic, partition in subscription.partitions:
        if is_seen(topic):
            by_topic.setdefault(topic, []).append(partition)
    answer: dict[str, object] = {
        "topics": list(filter(is_seen, subscription.topics)),
        "partitions": [{topic: partitions} for topic, partitions in by_topic.items()],
    }
    if subscription.pattern is not None:
        answer["topic_pattern"] = subscription.pattern
    return json_answer(answer, content_type=type_)


async def assign(call: Call) -> web.Response:
    """Assign partitions by hand, instead of by the group."""
    token = read_token(call.query())
    partitions = parse_partitions(await call.json_body())
    call.rights.authorize_subscription({topic for topic, _ in partitions}, None)
    await call.ports.consumers.assign(*await place(call), partitions, token=token)
    return empty_answer()


async def get_assignments(call: Call) -> web.Response:
    """Return the partitions that the consumer reads."""
    type_ = metadata_type(call.header("Accept"))
    is_seen = call.rights.seen(ResourceType.TOPIC)
    partitions = await call.ports.consumers.assignments(*await place(call))
    listed = [
        {"topic": topic, "partition": partition}
        for topic, partition in partitions
        if is_seen(topic)
    ]
    return json_answer({"partitions": listed}, content_type=type_)


async def seek(call: Call) -> web.Response:
    """Seek to offsets, or to times."""
    fields = Fields(await call.json_body(), "the body", POSITIONS.fields)
    check_count(len(fields.items("offsets")) + len(fields.items("timestamps")), "positions")
    seeks = [
        Seek(
            topic=item.required_text("topic"),
            partition=item.required_integer("partition", least=0),
            offset=_offset(item),
        )
        for item in fields.objects("offsets", POSITION_IN.fields)
    ]
    seeks += [
        Seek(
            topic=item.required_text("topic"),
            partition=item.required_integer("partition", least=0),
            timestamp_ms=_time(item),
        )
        for item in fields.objects("timestamps", TIME_IN.fields)
    ]
    if not seeks:
        raise InvalidFieldError(
            "the body: give 'offsets' or 'timestamps', and at least one of them"
        )
    return await _seek(call, seeks)


def _offset(item: Fields) -> int:
    value = item.raw("offset")
    if isinstance(value, str) and not value.removeprefix("-").isdigit():
        raise MalformedRequestError(
            f"'offset' is '{value}', not an offset; for the {Reset.EARLIEST} record POST to positions/beginning, "
            f"for the {Reset.LATEST} to positions/end"
        )
    return item.required_integer("offset", least=0)


def _time(item: Fields) -> int:
    value = item.raw("timestamp")
    if isinstance(value, str) and not value.removeprefix("-").isdigit():
        return parse_time(value, "timestamp")
    time_ms = item.required_integer("timestamp", least=0)
    if time_ms > TIMESTAMP_MS_MAX:
        raise InvalidFieldError(f"'timestamp' is {time_ms}; it is in ms since 1970")
    return time_ms


async def seek_to_beginning(call: Call) -> web.Response:
    """Seek to the first records."""
    return await _seek_to(call, Reset.EARLIEST)


async def seek_to_end(call: Call) -> web.Response:
    """Seek to the end, after the last records."""
    return await _seek_to(call, Reset.LATEST)


async def _seek_to(call: Call, name: Reset) -> web.Response:
    partitions = parse_partitions(await call.json_body())
    return await _seek(
        call, [Seek(topic=topic, partition=partition, name=name) for topic, partition in partitions]
    )


async def _seek(call: Call, seeks: list[Seek]) -> web.Response:
    # Check the rights first, so that the response does not reveal whether the topics exist.
    call.rights.authorize_subscription({seek.topic for seek in seeks}, None)
    await call.ports.consumers.seek(*await place(call), seeks)
    return empty_answer()


def parse_partitions(body: object) -> list[TopicPartition]:
    """Return the partitions in ``{"partitions": [{"topic", "partition"}]}``, without repeated ones."""
    fields = Fields(body, "the body", PARTITIONS_IN.fields)
    check_count(len(fields.required_items("partitions")), "partitions")
    found = (
        (item.required_text("topic"), item.required_integer("partition", least=0))
        for item in fields.objects("partitions", PARTITION_IN.fields)
    )
    return list(dict.fromkeys(found))
