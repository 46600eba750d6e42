"""v2: committed offsets of a REST consumer's group, and commits.

Proxies of other makers disagree about the meaning of a committed offset. In ``partitions``, and as ``next_offset``, it
is the offset of the next record to read. In ``offsets``, it is that of the last record that was read for some proxies,
and that of the next record for others. A setting of the consumer chooses between the two.
"""

from collections.abc import Iterable, Iterator

from aiohttp import web

from http_api.describing.params import Param
from http_api.describing.schemas import Fields, check_count, integer_text
from http_api.ports.groups import OffsetToCommit, TopicPartition
from http_api.protocol.answers import empty_answer, json_answer
from http_api.protocol.errors import InvalidFieldError
from http_api.protocol.media import metadata_type
from http_api.serving.call import Call
from http_api.shapes.blocks import text
from http_api.shapes.groups import CONSUMER_COMMIT, CONSUMER_COMMIT_ITEM
from http_api.v2.consumers import parse_partitions, place, place_to_read
from milena.model.access import Operation, ResourceType
from milena.model.errors import MalformedRequestError

TOPIC = Param("topic", "only this topic", text(minLength=1), "orders")
PARTITION = Param(
    "partition",
    "only these partitions of `topic`, with commas between them",
    text(pattern="^[0-9]{1,9}(,[0-9]{1,9})*$"),
    "0,1",
)
ASYNC = Param(
    "async",
    "taken, as other servers know it, and ignored: the answer always waits for the commit",
    text(),
)

_NOT_COMMITTED = -1


async def commit(call: Call) -> web.Response:
    """Commit the offsets in the body. An empty body commits all delivered records."""
    fields = Fields(await call.optional_json_body(), "the body", CONSUMER_COMMIT.fields)
    group, instance = await place(call)
    offsets = None
    if fields.has("offsets") and fields.has("partitions"):
        raise InvalidFieldError("the body: give 'offsets' or 'partitions', not both")
    if fields.has("offsets"):
        is_next = await call.ports.consumers.commits_next(group, instance)
        offsets = list(_offsets(fields, "offsets", 0 if is_next else 1))
    elif fields.has("partitions"):
        offsets = list(_offsets(fields, "partitions", 0))
    if offsets is None:
        # This commit marks the delivered records as read, so the caller must have the right to read them.
        await place_to_read(call)
    else:
        topics = {offset.topic for offset in offsets}
        call.rights.authorize(Operation.READ, ResourceType.TOPIC, topics)
    await call.ports.consumers.commit(group, instance, offsets)
    return empty_answer()


def _offsets(fields: Fields, name: str, step: int) -> Iterator[OffsetToCommit]:
    check_count(len(fields.items(name)), "offsets")
    for item in fields.objects(name, CONSUMER_COMMIT_ITEM.fields):
        next_offset = item.integer("next_offset", least=0)
        if next_offset is None:
            next_offset = item.required_integer("offset", least=0) + step
        elif item.has("offset"):
            raise InvalidFieldError(f"{name}: give 'offset' or 'next_offset', not both")
        yield OffsetToCommit(
            topic=item.required_text("topic"),
            partition=item.required_integer("partition", least=0),
            offset=next_offset,
            metadata=item.text("metadata") or "",
        )


async def get_offsets(call: Call) -> web.Response:
    """Return committed offsets of the partitions in the body or the query; without both, of all assigned partitions."""
    type_ = metadata_type(call.header("Accept"))
    group, instance = await place(call)
    body = await call.optional_json_body()
    is_seen = call.rights.seen(ResourceType.TOPIC)
    if body != {}:
        partitions = parse_partitions(body)
        _authorize(call, {topic for topic, _ in partitions})
    elif call.query():
        partitions = await _of_query(call)
    else:
        assigned = await call.ports.consumers.assignments(group, instance)
        partitions = [place for place in assigned if is_seen(place[0])]
    rows = await call.ports.consumers.committed(group, instance, partitions)
    found = {(row.topic, row.partition): (row.offset, row.metadata) for row in rows}
    listed: list[dict[str, object]] = []
    for topic, partition in partitions:
        offset, metadata = found.get((topic, partition), (_NOT_COMMITTED, ""))
        listed.append(
            {"topic": topic, "partition": partition, "offset": offset, "metadata": metadata}
        )
    return json_answer({"offsets": listed}, content_type=type_)


def _authorize(call: Call, topics: Iterable[str]) -> None:
    """Check the caller's rights before the node looks up topics and commits."""
    call.rights.authorize(Operation.DESCRIBE, ResourceType.TOPIC, topics)


async def _of_query(call: Call) -> list[TopicPartition]:
    query = call.query()
    topic, numbers = query.get(TOPIC.name), query.get(PARTITION.name)
    if topic is None:
        raise MalformedRequestError(
            f"Invalid parameter 'partition' got '{numbers}': name its 'topic', too"
        )
    _authorize(call, {topic})
    if numbers is None:
        count = (await call.ports.metadata.topic(topic)).partition_count
        return [(topic, partition) for partition in range(count)]
    found = [(topic, integer_text(PARTITION.name, number)) for number in numbers.split(",")]
    check_count(len(found), "partitions")
    if min(found)[1] < 0:
        raise MalformedRequestError(f"Invalid parameter 'partition' got '{numbers}': below 0")
    return list(dict.fromkeys(found))
