"""Native endpoints of consumer groups: heartbeats of members, commits, descriptions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from aiohttp import web

from http_api.access.rights import everything
from http_api.describing.pages import LIMIT, PARTITIONS, RowPage, matching, sort_param
from http_api.describing.params import IntegerParam, Param
from http_api.describing.schemas import Fields, check_count
from http_api.groups.lags import GroupPlace, Lag, places_of, total_lags, with_ends
from http_api.groups.offsets import offsets_json
from http_api.ports.groups import (
    GroupHead,
    Heartbeat,
    MemberDescription,
    OffsetToCommit,
    PartitionsByTopic,
    TopicOffset,
    TopicPartition,
    each_partition,
)
from http_api.ports.node import ApiLimits
from http_api.protocol.answers import empty_answer, json_answer
from http_api.protocol.errors import InvalidFieldError
from http_api.records.topic_tags import named_topic_id
from http_api.serving.call import Call
from http_api.serving.routing import check_no_dots
from http_api.shapes import groups as shapes
from http_api.shapes.blocks import text
from milena.model.access import Operation, ResourceType
from milena.model.errors import MalformedRequestError

WAIT_MS = IntegerParam(
    name="timeout_ms",
    description=(
        "hold the answer back for so long unless it differs from what the member knows; "
        f"longer than {ApiLimits().fetch_wait_ms_max} is taken as that, unless the node is configured otherwise"
    ),
    least=0,
    default=0,
)
TOPIC = Param("topic", "only this topic", text(minLength=1), "orders")


async def heartbeat(call: Call) -> web.Response:
    """Join a group, stay in it or leave it."""
    wait_ms = WAIT_MS.read(call.query())
    fields = Fields(await call.json_body(), "the body", shapes.HEARTBEAT.fields)
    topics = fields.strings("topics") if fields.has("topics") else None
    pattern = fields.label("pattern")
    call.rights.authorize_subscription(topics or (), pattern)
    call.check_groups([call.names["group"]])
    member_id = fields.label("member_id") or ""
    member_epoch = fields.required_integer("member_epoch", least=-1)
    if member_id and member_epoch == 0:
        check_no_dots("member", member_id)
    answer = await call.ports.groups.heartbeat(
        Heartbeat(
            group_id=call.names["group"],
            member_id=member_id,
            member_epoch=member_epoch,
            instance_id=fields.label("instance_id") or None,
            client_id=fields.label("client_id") or "",
            host=call.request.remote or "",
            topics=None if topics is None else tuple(topics),
            pattern=pattern,
            assignor=fields.label("assignor"),
            session_timeout_ms=fields.integer("session_timeout_ms", least=1),
            rebalance_timeout_ms=fields.integer("rebalance_timeout_ms", least=1),
            owned=_owned(fields),
            wait_ms=min(wait_ms, call.ports.limits.fetch_wait_ms_max),
        ),
    )
    # A caller with the right to the group may send a heartbeat for any member, also one with topics that the caller
    # may not see. So leave these topics out of the response.
    is_seen = call.rights.seen(ResourceType.TOPIC)
    return json_answer(
        shapes.HEARTBEAT_ANSWER.of(
            answer,
            assignment=by_topic(each_partition(answer.assignment), is_seen),
            pending=by_topic(each_partition(answer.pending), is_seen),
        )
    )


def _owned(fields: Fields) -> PartitionsByTopic | None:
    if not fields.has("owned"):
        return None
    found = tuple(
        (item.required_text("topic"), tuple(item.integers("partitions", least=0)))
        for item in fields.objects("owned", shapes.TOPIC_PARTITIONS_IN.fields)
    )
    check_count(sum(len(numbers) for _, numbers in found), "partitions")
    return found


def by_topic(
    partitions: Iterable[TopicPartition], is_seen: Callable[[str], bool] = everything
) -> list[dict[str, object]]:
    """Return ``[{"topic", "partitions"}]`` for the topics that the caller may see, sorted."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        if is_seen(topic):
            found.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partitions": numbers} for topic, numbers in found.items()]


async def commit(call: Call) -> web.Response:
    """Commit offsets, all or none, as a member or for a group without members."""
    fields = Fields(await call.json_body(), "the body", shapes.COMMIT.fields)
    check_count(len(fields.required_items("offsets")), "offsets")
    offsets = [_offset(item) for item in fields.objects("offsets", shapes.COMMIT_ITEM.fields)]
    call.rights.authorize(Operation.READ, ResourceType.TOPIC, {offset.topic for offset in offsets})
    member_id = fields.text("member_id") or None
    member_epoch = fields.integer("member_epoch", least=-1)
    if member_id is not None and member_epoch is None:
        raise InvalidFieldError("the body: 'member_epoch' is missing beside 'member_id'")
    call.check_groups([call.names["group"]])
    await call.ports.groups.commit(
        call.names["group"],
        offsets,
        member_id=member_id,
        member_epoch=-1 if member_epoch is None else member_epoch,
    )
    return empty_answer()


def _offset(item: Fields) -> OffsetToCommit:
    leader_epoch = item.integer("leader_epoch", least=-1)
    return TopicOffset(
        topic=item.required_text("topic"),
        partition=item.required_integer("partition", least=0),
        offset=item.required_integer("offset", least=0),
        leader_epoch=-1 if leader_epoch is None else leader_epoch,
        metadata=item.text("metadata") or "",
        topic_id=named_topic_id(item),
    )


async def get_offsets(call: Call) -> web.Response:
    """Return offsets that the group has committed, in all topics or one."""
    group, topic = call.names["group"], call.query().get(TOPIC.name)
    if topic == "":
        raise MalformedRequestError(
            "Invalid parameter 'topic' got '': name a topic, or leave it out"
        )
    is_seen = call.rights.seen(ResourceType.TOPIC)
    offsets = [one for one in await call.ports.groups.committed(group) if is_seen(one.topic)]
    if topic is not None:
        offsets = [offset for offset in offsets if offset.topic == topic]
    return json_answer({"group_id": group, "offsets": offsets_json(offsets)})


_GROUP_KEYS: Mapping[str, Callable[[GroupHead], int | str] | None] = {
    "group": None,
    "state": lambda group: group.state.value,
    "members": lambda group: group.member_count,
    "coordinator": lambda group: -1 if group.coordinator is None else group.coordinator,
}
_BY_LAG = "lag"
SORT = sort_param({name: name for name in (*_GROUP_KEYS, _BY_LAG)}, "id")


async def list_groups(call: Call) -> web.Response:
    """Return all groups, or a page of them, without members and offsets. If sorted by lag, each row has its lag."""
    query = call.query()
    sort, page = SORT.read(query), RowPage.of(query)
    is_seen = call.rights.seen(ResourceType.GROUP)
    groups = (one for one in await call.ports.groups.groups() if is_seen(one.group_id))
    found = matching(groups, lambda group: group.group_id, query)
    if sort == _BY_LAG:
        lags = await total_lags(call, [group.group_id for group in found])
        with_lags = page.cut(list(zip(found, lags, strict=True)), _lag_or_least)
        shown = [shapes.GROUP_SUMMARY.of(group, lag=lag) for group, lag in with_lags]
    else:
        shown = [shapes.GROUP_SUMMARY.of(one) for one in page.cut(found, _GROUP_KEYS[sort])]
    return json_answer({"total": len(found), "groups": shown})


def _lag_or_least(row: tuple[GroupHead, int | None]) -> int:
    return -1 if row[1] is None else row[1]


async def get_group(call: Call) -> web.Response:
    """Return a group with its members and committed offsets."""
    group = await call.ports.groups.describe(call.names["group"])
    is_seen = call.rights.seen(ResourceType.TOPIC)
    return json_answer(
        shapes.GROUP.of(
            group,
            members=[
                shapes.GROUP_MEMBER.of(member, **_parts(member))
                for member in (_seen_of(one, is_seen) for one in group.members)
            ],
            offsets=offsets_json(one for one in group.offsets if is_seen(one.topic)),
        )
    )


def _seen_of(member: MemberDescription, is_seen: Callable[[str], bool]) -> MemberDescription:
    """Return a member without topics that the caller may not see, and without its pattern unless it sees all topics."""
    if is_seen is everything:
        return member

    def shown(partitions: Sequence[TopicPartition]) -> tuple[TopicPartition, ...]:
        return tuple(one for one in partitions if is_seen(one[0]))

    return replace(
        member,
        topics=tuple(filter(is_seen, member.topics)),
        pattern=None,
        assignment=shown(member.assignment),
        revoking=shown(member.revoking),
        pending=shown(member.pending),
    )


def _parts(member: MemberDescription, partitions_max: int | None = None) -> dict[str, object]:
    """Return the member's partitions, at most so many of each kind."""
    return {
        "assignment": by_topic(member.assignment[:partitions_max]),
        "revoking": by_topic(member.revoking[:partitions_max]),
        "pending": by_topic(member.pending[:partitions_max]),
    }


_MEMBER_KEYS: Mapping[str, Callable[[MemberDescription], int | str] | None] = {
    "member": None,
    "epoch": lambda member: member.member_epoch,
    "partitions": lambda member: len(member.assignment),
}
MEMBER_SORT = sort_param(_MEMBER_KEYS, "id")


async def list_members(call: Call) -> web.Response:
    """Return a group with some of its members."""
    query = call.query()
    key, page = MEMBER_SORT.read(query), RowPage.of(query, LIMIT)
    partitions_max = PARTITIONS.read(query)
    group = await call.ports.groups.describe(call.names["group"])
    is_seen = call.rights.seen(ResourceType.TOPIC)
    members = sorted(
        (_seen_of(member, is_seen) for member in group.members),
        key=lambda member: member.member_id,
    )
    found = matching(members, lambda member: member.member_id, query)
    return json_answer(
        shapes.MEMBER_PAGE.of(
            group,
            total=len(found),
            members=[
                shapes.MEMBER_SUMMARY.of(
                    member,
                    **_parts(member, partitions_max),
                    assignment_count=len(member.assignment),
                    revoking_count=len(member.revoking),
                    pending_count=len(member.pending),
                )
                for member in page.cut(found, key)
            ],
        )
    )


_PLACE_KEYS: Mapping[str, Callable[[GroupPlace], int | str] | None] = {
    "partition": None,
    "offset": lambda place: place.committed.offset,
    "member": lambda place: place.member_id or "",
    "committed": lambda place: place.committed.commit_ms,
}
_END_KEYS: Mapping[str, Callable[[Lag], int]] = {
    "end_offset": lambda lag: -1 if lag.end_offset is None else lag.end_offset,
    "lag": lambda lag: -1 if lag.lag is None else lag.lag,
}
LAG_SORT = sort_param({name: name for name in (*_PLACE_KEYS, *_END_KEYS)}, "topic and number")


async def list_lags(call: Call) -> web.Response:
    """Return a group with some of its committed partitions and the lag of each."""
    query = call.query()
    sort, page = LAG_SORT.read(query), RowPage.of(query, LIMIT)
    group = await call.ports.groups.describe(call.names["group"])
    is_seen = call.rights.seen(ResourceType.TOPIC)
    found = matching(places_of(group, is_seen), lambda place: place.committed.topic, query)
    if sort in _END_KEYS:
        lags = page.cut(await with_ends(call, found), _END_KEYS[sort])
    else:
        # The order does not depend on the lags. So ask only the leaders of the partitions on this page.
        lags = await with_ends(call, page.cut(found, _PLACE_KEYS[sort]))
    return json_answer(
        shapes.LAG_PAGE.of(group, total=len(found), lags=[_lag(lag) for lag in lags])
    )


def _lag(lag: Lag) -> dict[str, object]:
    committed = lag.place.committed
    return shapes.GROUP_LAG.of(
        committed,
        end_offset=lag.end_offset,
        lag=lag.lag,
        member_id=lag.place.member_id,
        commit_timestamp=committed.commit_ms,
    )


async def delete(call: Call) -> web.Response:
    """Delete a group without members, and its offsets."""
    await call.ports.groups.delete(call.names["group"])
    return empty_answer()
