"""v3: configs of a topic."""

from aiohttp import web

from http_api.access.needs import ALL_TOPICS
from http_api.describing.schemas import Fields, check_count
from http_api.protocol.answers import empty_answer, json_answer
from http_api.protocol.errors import InvalidFieldError, row_of
from http_api.serving.call import Call
from http_api.serving.lookup import find_topic, named_topics
from http_api.shapes.requests import (
    CONFIG_CHANGE,
    CONFIG_CHANGES,
    CONFIG_VALUE,
    TOPIC_CONFIG_CHANGES,
    TOPICS_CONFIG_CHANGES,
)
from http_api.v3.resources import Links, Resource, cluster_id, item_answer
from http_api.v3.rows import TOPIC_MISSING
from milena.model.access import Operation, ResourceType
from milena.model.errors import ConfigNotFoundError, MilenaError, TopicNotFoundError
from raft_meta.machine.topics.configs import ConfigValue, effective

_SET_SOURCE = "DYNAMIC_TOPIC_CONFIG"
_DEFAULT_SOURCE = "DEFAULT_CONFIG"


def config_fields(config: ConfigValue, *, is_read_only: bool) -> Resource:
    """Return the fields that configs of topics, brokers and the cluster have."""
    synonyms = [{"name": config.name, "value": config.default, "source": _DEFAULT_SOURCE}]
    if not config.is_default:
        synonyms.insert(0, {"name": config.name, "value": config.value, "source": _SET_SOURCE})
    return {
        "name": config.name,
        "value": config.value,
        "is_default": config.is_default,
        "is_read_only": is_read_only,
        "is_sensitive": False,
        "source": _DEFAULT_SOURCE if config.is_default else _SET_SOURCE,
        "synonyms": synonyms,
    }


def _config(links: Links, topic: str, config: ConfigValue) -> Resource:
    return {
        **links.item("KafkaTopicConfig", "topics", topic, "configs", config.name),
        "topic_name": topic,
        **config_fields(config, is_read_only=False),
    }


async def list_configs(call: Call) -> web.Response:
    """Return the effective configs of a topic; for the topic ``-``, those of all topics."""
    links = Links(call)
    is_seen = call.rights.seen(ResourceType.TOPIC, Operation.DESCRIBE_CONFIGS)
    topics = await named_topics(call, is_seen)
    items = [_config(links, t.name, config) for t in topics for config in effective(t).values()]
    return links.listing("KafkaTopicConfigList", items, "topics", call.names["topic"], "configs")


async def get_config(call: Call) -> web.Response:
    """Return one effective config of a topic."""
    links = Links(call)
    topic = await find_topic(call)
    config = effective(topic).get(call.names["config"])
    if config is None:
        raise ConfigNotFoundError(f"there is no topic config '{call.names['config']}'")
    return item_answer(_config(links, topic.name, config))


async def put_config(call: Call) -> web.Response:
    """Set one config."""
    cluster_id(call)
    value = Fields(await call.json_body(), "the body", CONFIG_VALUE.fields).setting("value")
    if value is None:
        raise InvalidFieldError("'value' is missing; to go back to the default, use DELETE")
    return await _alter(call, {call.names["config"]: value})


async def delete_config(call: Call) -> web.Response:
    """Reset one config to its default."""
    cluster_id(call)
    return await _alter(call, {call.names["config"]: None})


async def alter_configs(call: Call) -> web.Response:
    """Set and reset several configs of a topic; for the topic ``-``, of the topics in the body."""
    cluster_id(call)
    if call.names["topic"] == ALL_TOPICS:
        return await _alter_several(call)
    call.rights.authorize(Operation.ALTER_CONFIGS, ResourceType.TOPIC, [call.names["topic"]])
    fields = Fields(await call.json_body(), "the body", CONFIG_CHANGES.fields)
    if not fields.has("data"):
        raise InvalidFieldError("the body: 'data', a list of changes, is missing")
    changes = _changes(fields, "data")
    return await _alter(call, changes, is_validate_only=fields.boolean("validate_only"))


async def _alter_several(call: Call) -> web.Response:
    """Change topics one after the other. If one fails, the others are still changed. Source: Confluent's REST proxy."""
    fields = Fields(await call.json_body(), "the body", TOPICS_CONFIG_CHANGES.fields)
    check_count(len(fields.required_items("data")), "topics")
    wanted: dict[str, dict[str, str | None]] = {}
    for item in fields.objects("data", TOPIC_CONFIG_CHANGES.fields):
        topic = item.required_text("topic_name")
        if topic in wanted:
            raise InvalidFieldError(f"topic '{topic}' is there twice")
        wanted[topic] = _changes(item, "configs")
    if not wanted:
        raise InvalidFieldError("the body: 'data' is empty: name a topic and its changes")
    call.rights.authorize(Operation.ALTER_CONFIGS, ResourceType.TOPIC, wanted)
    is_validate_only = fields.boolean("validate_only")
    failures: list[dict[str, object]] = []
    for topic, changes in wanted.items():
        try:
            await call.ports.metadata.alter_configs(
                topic, changes, is_validate_only=is_validate_only
            )
        except MilenaError as error:
            code = (
                TOPIC_MISSING if isinstance(error, TopicNotFoundError) else row_of(error).error_code
            )
            failures.append({"topic_name": topic, "error_code": code, "message": error.message})
    return json_answer({"failures": failures}, status=207) if failures else empty_answer()


def _changes(fields: Fields, field: str) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for change in fields.objects(field, CONFIG_CHANGE.fields):
        name = change.required_text("name")
        if name in changes:
            raise InvalidFieldError(f"config '{name}' is changed twice")
        changes[name] = _changed_value(change, name)
    return changes


def _changed_value(change: Fields, name: str) -> str | None:
    given, value = change.text("operation"), change.setting("value")
    operation = "SET" if given is None else given.upper()
    if operation not in ("SET", "DELETE"):
        raise InvalidFieldError(
            f"config '{name}': operation '{operation}' is neither SET nor DELETE"
        )
    if operation == "DELETE" and value is not None:
        raise InvalidFieldError(
            f"config '{name}': operation DELETE takes no 'value', but it is '{value}'; to set it, use operation SET"
        )
    if operation == "SET" and value is None:
        # Do not take a missing value for a reset, because the client may have forgotten the value. Kafka refuses it
        # too.
        raise InvalidFieldError(
            f"config '{name}': 'value' is missing; to go back to the default, use operation DELETE"
        )
    return value


async def _alter(
    call: Call, changes: dict[str, str | None], *, is_validate_only: bool = False
) -> web.Response:
    await call.ports.metadata.alter_configs(
        call.names["topic"], changes, is_validate_only=is_validate_only
    )
    return empty_answer()
