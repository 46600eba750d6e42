"""Configs: DescribeConfigs (32), AlterConfigs (33), IncrementalAlterConfigs (44), ListConfigResources (74).

Topics have configs that clients may change. The configs of a broker are shown by that broker alone, and cannot be
changed while it runs. Source: KIP-133, KIP-226 (sources, synonyms), KIP-339 (incremental changes), KIP-569,
KIP-1142 (list of resources).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum, unique

from http_api.protocol.kafka_codes import KafkaCode
from milena.model.access import CLUSTER_NAME, Operation, ResourceType
from node.config.budgets import LONG_PROPOSE_MS
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.items import ItemError, each, error_fields, invalid, repeated, twice
from node.kafka.rights import needs
from node.kafka.wire import cold
from node.kafka.wire.configs import (
    ConfigRow,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    ResourceRow,
    encode_response,
)
from raft_meta.machine.image import Topic
from raft_meta.machine.topics.configs import BROKER_NAMES, ConfigValue, broker_configs, effective

ROWS_MAX = 50_000
"""Configs in one response: those of 2,600 topics. They take 0.3 s to encode."""


@unique
class ConfigResource(IntEnum):
    """The kinds of resources that have configs here."""

    TOPIC = 2
    BROKER = 4


CLIENT_METRICS = 16
LISTED_TYPES = frozenset({ConfigResource.TOPIC, ConfigResource.BROKER, 8, CLIENT_METRICS, 32})
"""The types that a client may list. There are no resources of the last three: loggers, client metrics and groups."""


@unique
class ConfigOperation(IntEnum):
    """A change of one config by IncrementalAlterConfigs. APPEND and SUBTRACT change single items of a list."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def source_of(config: ConfigValue) -> ConfigSource:
    """Return the source of a topic config's value."""
    return ConfigSource.DEFAULT_CONFIG if config.is_default else ConfigSource.DYNAMIC_TOPIC_CONFIG


def _unknown_type(resource_type: int) -> ItemError:
    return invalid(
        f"Resources of type {resource_type} have no configs here: name a topic "
        f"({ConfigResource.TOPIC.value}) or a broker ({ConfigResource.BROKER.value})."
    )


# -- DescribeConfigs -------------------------------------------------------------------------------


@serves(
    32,
    "DescribeConfigs",
    versions=(1, 4),
    access=needs("DESCRIBE_CONFIGS TOPIC", "DESCRIBE_CONFIGS CLUSTER"),
)
async def _describe_configs(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()

    async def describe(resource: cold.Message) -> tuple[ConfigRow, ...]:
        keys = resource.configuration_keys
        _authorize(call, Operation.DESCRIBE_CONFIGS, resource)
        if resource.resource_type == ConfigResource.TOPIC:
            rows = _topic_rows(await services.admin.topic(resource.resource_name))
        elif resource.resource_type == ConfigResource.BROKER:
            rows = _broker_rows(services, call, resource.resource_name)
        else:
            raise _unknown_type(resource.resource_type)
        # As in Kafka, an empty list stands for all configs, too.
        wanted = frozenset(keys) if keys else None
        return tuple(
            row._replace(
                synonyms=row.synonyms if request.include_synonyms else (),
                documentation=row.documentation if request.include_documentation else None,
            )
            for row in rows
            if wanted is None or row.name in wanted
        )

    results = await each(request.resources, describe, timeout_ms=LONG_PROPOSE_MS)
    rows, left = [], ROWS_MAX
    for resource, found in zip(request.resources, results, strict=True):
        result = found
        if not isinstance(result, ItemError):
            left -= len(result)
            if left < 0:
                result = invalid(
                    f"One response has at most {ROWS_MAX} configs: name fewer resources, or fewer configs of each."
                )
        rows.append(_resource_row(call, resource, result))
    return encode_response(call.version, rows, call.throttle_ms)


def _authorize(call: KafkaCall, operation: Operation, resource: cold.Message) -> None:
    """Require the right to the configs of a resource: to the topic, or to the cluster.

    Raises:
        ForbiddenError: the caller has no such right.
    """
    if resource.resource_type == ConfigResource.TOPIC:
        call.rights.authorize(operation, ResourceType.TOPIC, (resource.resource_name,))
    else:
        call.rights.authorize(operation, ResourceType.CLUSTER, (CLUSTER_NAME,))


def _resource_row(
    call: KafkaCall, resource: cold.Message, result: tuple[ConfigRow, ...] | ItemError
) -> ResourceRow:
    name, kind = resource.resource_name, resource.resource_type
    if isinstance(result, ItemError):
        return ResourceRow(call.note(result.code), result.message, kind, name)
    return ResourceRow(KafkaCode.NONE, None, kind, name, result)


def _topic_rows(topic: Topic) -> Iterable[ConfigRow]:
    for config in effective(topic).values():
        default = ConfigSynonym(
            BROKER_NAMES[config.name], config.default, ConfigSource.DEFAULT_CONFIG
        )
        source = source_of(config)
        own = ConfigSynonym(config.name, config.value, source)
        yield ConfigRow(
            name=config.name,
            value=config.value,
            is_read_only=False,
            source=source,
            synonyms=(default,) if config.is_default else (own, default),
            kind=ConfigType[config.kind],
            documentation=config.doc,
        )


def _broker_rows(services: KafkaServices, call: KafkaCall, name: str) -> Iterable[ConfigRow]:
    """Return the configs of this broker, which are all read-only; those of all brokers ("") are not set."""
    own = services.metadata.node_id
    if name == "":
        return ()
    if name != str(own):
        raise invalid(
            f"This is broker {own}, and it does not know the configs of broker {name[:64]!r}: send the request to that "
            "broker."
        )
    found = [
        _broker_row(config.name, config.value, ConfigType[config.kind], config.doc)
        for config in broker_configs().values()
    ]
    return sorted([*found, *_node_rows(services, call)])


def _broker_row(
    name: str,
    value: str | None,
    kind: ConfigType,
    doc: str,
    source: ConfigSource = ConfigSource.DEFAULT_CONFIG,
) -> ConfigRow:
    synonyms = (ConfigSynonym(name, value, source),)
    return ConfigRow(name, value, True, source, synonyms, kind, doc)


def _node_rows(services: KafkaServices, call: KafkaCall) -> Iterable[ConfigRow]:
    """Yield the options of this node that Kafka has, too, under Kafka's names."""
    defaults, image = services.admin.defaults, services.admin.image
    own = services.metadata.node_id
    broker = image.brokers.get(own)
    listener = f"{services.access.security_protocol}://{call.address.host}:{call.address.port}"
    creates = "true" if defaults.is_auto_create else "false"
    factor = services.admin.default_factor(image)
    text, boolean, number = ConfigType.STRING, ConfigType.BOOLEAN, ConfigType.INT
    static = (
        (
            "advertised.listeners",
            listener,
            ConfigType.LIST,
            "Where Kafka clients reach this broker. It is the option `kafka_advertise`.",
        ),
        (
            "auto.create.topics.enable",
            creates,
            boolean,
            "Whether a write creates a missing topic. It is the option `auto_create_topics`.",
        ),
        ("broker.id", str(own), number, "The id of this broker. It is the option `node_id`."),
        (
            "broker.rack",
            None if broker is None else broker.rack,
            text,
            "The place of this broker. It is the option `rack`.",
        ),
        (
            "default.replication.factor",
            str(factor),
            number,
            "The replicas of a topic whose creator names no number. It is the option `default_replication_factor`.",
        ),
        (
            "num.partitions",
            str(defaults.partition_count),
            number,
            "The partitions of a topic whose creator names no number. It is the option `default_partitions`.",
        ),
    )
    for row in static:
        yield _broker_row(*row, ConfigSource.STATIC_BROKER_CONFIG)
    yield _broker_row("delete.topic.enable", "true", boolean, "Whether topics may be deleted.")


# -- AlterConfigs and IncrementalAlterConfigs ------------------------------------------------------

_Changes = Callable[[Topic, cold.Message], Mapping[str, str | None]]
"""From a topic and a resource of the request: the configs to set, or to reset (None)."""


async def _alter(services: KafkaServices, call: KafkaCall, changes_of: _Changes) -> Body:
    request = call.message()
    ambiguous = repeated((one.resource_type, one.resource_name) for one in request.resources)

    async def alter(resource: cold.Message) -> None:
        kind, name = resource.resource_type, resource.resource_name
        _authorize(call, Operation.ALTER_CONFIGS, resource)
        if (kind, name) in ambiguous:
            raise twice("The resource")
        if kind == ConfigResource.BROKER:
            raise invalid(
                "The configs of a broker cannot be changed while it runs: change the options of its node and start it "
                "again."
            )
        if kind != ConfigResource.TOPIC:
            raise _unknown_type(kind)
        keys = repeated(config.name for config in resource.configs)
        if keys:
            raise invalid(
                f"Configs are in the request more than once: {', '.join(sorted(map(str, keys)))}."
            )
        # Use the newest image: changes of lists begin with the present configs.
        await services.admin.current_image()
        changes = changes_of(await services.admin.topic(name), resource)
        if changes:
            await services.admin.alter_configs(
                name, changes, is_validate_only=request.validate_only
            )

    results = await each(request.resources, alter, timeout_ms=LONG_PROPOSE_MS)
    rows = [
        {
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            **error_fields(call, result),
        }
        for resource, result in zip(request.resources, results, strict=True)
    ]
    return call.answer({"responses": rows})


def _value(config: cold.Message) -> str:
    value: str | None = config.value
    if value is None:
        raise invalid(
            f"The config {config.name} has no value: give one. To go back to the default, delete the config."
        )
    return value


def _all_changes(topic: Topic, resource: cold.Message) -> dict[str, str | None]:
    """Return the changes after which the topic has the named configs, and no others."""
    named = {config.name: _value(config) for config in resource.configs}
    return {**dict.fromkeys(topic.configs), **named}


def _single_changes(topic: Topic, resource: cold.Message) -> dict[str, str | None]:
    present = effective(topic)
    return {config.name: _single_change(present, config) for config in resource.configs}


def _single_change(present: Mapping[str, ConfigValue], config: cold.Message) -> str | None:
    match config.config_operation:
        case ConfigOperation.SET:
            return _value(config)
        case ConfigOperation.DELETE:
            return None
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT as operation:
            return _list_change(present, config, is_append=operation == ConfigOperation.APPEND)
        case other:
            raise invalid(
                f"The operation {other} does not exist: use 0 (set), 1 (delete), 2 (append) or 3 (subtract)."
            )


def _list_change(
    present: Mapping[str, ConfigValue], config: cold.Message, *, is_append: bool
) -> str:
    """Return the list with the items of the request, or without them."""
    words = _words(_value(config))
    before = present.get(config.name)
    if before is None:
        return ",".join(words)  # the service refuses the name
    if before.kind != ConfigType.LIST.name:
        raise ItemError(
            KafkaCode.INVALID_CONFIG,
            f"The config {config.name} is not a list, so nothing can be appended or subtracted: set it.",
        )
    old = _words(before.value)
    kept = [*old, *words] if is_append else [word for word in old if word not in words]
    return ",".join(dict.fromkeys(kept))


def _words(text: str) -> Collection[str]:
    return [word for part in text.split(",") if (word := part.strip().lower())]


@serves(
    33,
    "AlterConfigs",
    versions=(0, 2),
    access=needs("ALTER_CONFIGS TOPIC", "ALTER_CONFIGS CLUSTER"),
)
async def _alter_configs(services: KafkaServices, call: KafkaCall) -> Body:
    return await _alter(services, call, _all_changes)


@serves(
    44,
    "IncrementalAlterConfigs",
    versions=(0, 1),
    access=needs("ALTER_CONFIGS TOPIC", "ALTER_CONFIGS CLUSTER"),
)
async def _incremental_alter_configs(services: KafkaServices, call: KafkaCall) -> Body:
    return await _alter(services, call, _single_changes)


# -- ListConfigResources ---------------------------------------------------------------------------


@serves(74, "ListConfigResources", versions=(0, 1), access=needs("DESCRIBE_CONFIGS CLUSTER"))
async def _list_config_resources(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    # Version 0 lists client metrics alone.
    asked = frozenset(request.resource_types if call.version else [CLIENT_METRICS]) or LISTED_TYPES
    if not call.rights.permits_cluster(Operation.DESCRIBE_CONFIGS):
        code = call.note(KafkaCode.CLUSTER_AUTHORIZATION_FAILED)
        return call.answer({"error_code": code, "config_resources": []})
    if not asked <= LISTED_TYPES:
        code = call.note(KafkaCode.UNSUPPORTED_VERSION)
        return call.answer({"error_code": code, "config_resources": []})
    image = services.metadata.image
    names = {
        ConfigResource.TOPIC: sorted(image.topic_ids),
        ConfigResource.BROKER: [str(broker_id) for broker_id in sorted(image.brokers)],
    }
    rows = [
        {"resource_name": name, "resource_type": kind.value}
        for kind, of_kind in names.items()
        if kind in asked
        for name in of_kind
    ]
    return call.answer({"config_resources": rows})


APIS = (_describe_configs, _alter_configs, _incremental_alter_configs, _list_config_resources)
