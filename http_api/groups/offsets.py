"""Encode the committed offsets of a group, and reset them."""

from collections.abc import Iterable, Mapping, Sequence

from aiohttp import web

from http_api.describing.pages import LIMIT, RowPage
from http_api.describing.params import Param
from http_api.describing.schemas import Fields, check_count, integer_text, is_integer, json_kind
from http_api.formats.envelope import parse_time
from http_api.ports.groups import PartitionCommit, Reset, ResetTarget, TopicPartition
from http_api.protocol.answers import json_answer
from http_api.protocol.errors import InvalidFieldError
from http_api.serving.call import Call
from http_api.shapes.blocks import text
from http_api.shapes.groups import GROUP_OFFSET, RESET
from milena.model.access import Operation, ResourceType
from milena.model.errors import GroupNotFoundError, MalformedRequestError

_TARGETS = "earliest, latest, an offset or an ISO-8601 time"
RESET_TOPIC = Param("topic", "the topic to go on elsewhere in", text(minLength=1), "orders")
TO = Param("to", f"{_TARGETS}: the first record at or after it", text(), "earliest")


def offsets_json(offsets: Iterable[PartitionCommit]) -> Mapping[str, Mapping[str, object]]:
    """Return offsets as ``{topic: {partition: {"offset", "leader_epoch", "metadata", "commit_timestamp"}}}``."""
    found: dict[str, dict[str, object]] = {}
    for offset in sorted(offsets, key=lambda item: (item.topic, item.partition)):
        found.setdefault(offset.topic, {})[str(offset.partition)] = GROUP_OFFSET.of(
            offset, commit_timestamp=offset.commit_ms
        )
    return found


async def reset(call: Call) -> web.Response:
    """Move the committed offsets of a group without members."""
    group = call.names["group"]
    fields = Fields(await call.json_body(), "the body", RESET.fields)
    partitions = None
    if fields.has("partitions"):
        partitions = fields.integers("partitions", least=0)
        check_count(len(partitions), "partitions")
    topic, target = fields.required_text("topic"), _target(fields)
    call.rights.authorize(Operation.READ, ResourceType.TOPIC, [topic])
    call.check_groups([group])
    to = target.offset if target.offset is not None else target.timestamp_ms
    await call.ports.metadata.note(
        "reset_group",
        {
            "group_id": group,
            "topic": topic,
            "partitions": None if partitions is None else list(partitions),
            "to": target.name.value if target.name is not None else to,
        },
    )
    offsets = await call.ports.groups.reset(group, topic, partitions, target)
    return json_answer({"group_id": group, "offsets": offsets_json(offsets)})


async def preview_reset(call: Call) -> web.Response:
    """Return the offsets that a reset would set, in some of the topic's partitions. Nothing is changed."""
    query, group = call.query(), call.names["group"]
    page, target = RowPage.of(query, LIMIT), _named_target(_required(query, TO.name))
    name = _required(query, RESET_TOPIC.name)
    call.rights.authorize(Operation.DESCRIBE, ResourceType.TOPIC, [name])
    topic = await call.ports.metadata.topic(name)
    numbers = page.cut(range(topic.partition_count), None)
    now = await _offsets_now(call, group, [(name, number) for number in numbers])
    places = await call.ports.groups.places(name, numbers, target)
    return json_answer(
        {
            "group_id": group,
            "topic": name,
            "total": topic.partition_count,
            "partitions": [
                {
                    "partition": place.partition,
                    "now": now.get(place.partition),
                    "then": place.offset,
                }
                for place in places
            ],
        }
    )


async def _offsets_now(
    call: Call, group: str, partitions: Sequence[TopicPartition]
) -> Mapping[int, int]:
    """Return the committed offsets by partition; nothing for a group that a reset would create."""
    try:
        found = await call.ports.groups.committed(group, partitions)
    except GroupNotFoundError:
        return {}
    return {one.partition: one.offset for one in found}


def _required(query: Mapping[str, str], name: str) -> str:
    value = query.get(name)
    if not value:
        raise MalformedRequestError(
            f"Invalid parameter '{name}': it is missing; give 'topic', and 'to': {_TARGETS}"
        )
    return value


def _target(fields: Fields) -> ResetTarget:
    to = fields.raw("to")
    if to is None:
        raise InvalidFieldError(f"the body: 'to' is missing; give {_TARGETS}")
    if isinstance(to, str):
        return _named_target(to)
    if not is_integer(to):
        raise MalformedRequestError(f"'to' must be {_TARGETS}, not {json_kind(to)}")
    return ResetTarget(offset=fields.required_integer("to", least=0))


def _named_target(to: str) -> ResetTarget:
    if to in (Reset.EARLIEST, Reset.LATEST):
        return ResetTarget(name=Reset(to))
    if to.isascii() and to.isdigit():
        return ResetTarget(offset=integer_text("to", to))
    try:
        return ResetTarget(timestamp_ms=max(0, parse_time(to, "'to'")))
    except MalformedRequestError:
        raise MalformedRequestError(f"'to' is '{to}'; give {_TARGETS}") from None
