"""v3: consumer groups, their members and their lags."""

from aiohttp import web

from http_api.groups import offsets
from http_api.groups.lags import Lag, lags_of, places_of, sum_of_known, with_ends
from http_api.ports.groups import (
    GroupDescription,
    GroupHead,
    GroupKind,
    MemberDescription,
    TopicPartition,
)
from http_api.protocol.answers import empty_answer
from http_api.protocol.errors import ResourceNotFoundError
from http_api.serving.call import Call
from http_api.v3.resources import Links, Resource, cluster_id, item_answer
from milena.model.access import ResourceType
from milena.model.errors import MemberNotFoundError

_ROOT = "consumer-groups"


def _group(links: Links, group: GroupHead) -> Resource:
    parts = (_ROOT, group.group_id)
    coordinator = group.coordinator
    return {
        **links.item("KafkaConsumerGroup", *parts),
        "consumer_group_id": group.group_id,
        # Generation 0 means that no member has ever joined, so clients of the group assign partitions themselves.
        "is_simple": group.generation == 0,
        "partition_assignor": group.assignor,
        "state": group.state.value,
        "type": "CLASSIC" if group.kind is GroupKind.CLASSIC else "CONSUMER",
        "is_mixed_consumer_group": False,
        "coordinator": None if coordinator is None else links.related("brokers", coordinator),
        "consumer": links.related(*parts, "consumers"),
        "consumers": links.related(*parts, "consumers"),
        "lag_summary": links.related(*parts, "lag-summary"),
    }


async def list_groups(call: Call) -> web.Response:
    """Return all groups."""
    links = Links(call)
    is_seen = call.rights.seen(ResourceType.GROUP)
    groups = [group for group in await call.ports.groups.groups() if is_seen(group.group_id)]
    items = [_group(links, group) for group in groups]
    return links.listing("KafkaConsumerGroupList", items, _ROOT)


async def _describe(call: Call) -> GroupDescription:
    return await call.ports.groups.describe(call.names["group"])


async def get_group(call: Call) -> web.Response:
    """Return one group."""
    links = Links(call)
    return item_answer(_group(links, await _describe(call)))


async def delete_group(call: Call) -> web.Response:
    """Delete a group without members, and its offsets."""
    cluster_id(call)
    await call.ports.groups.delete(call.names["group"])
    return empty_answer()


async def reset_offsets(call: Call) -> web.Response:
    """Move the committed offsets of a group without members."""
    cluster_id(call)
    return await offsets.reset(call)


# -- members ---------------------------------------------------------------------------------------


def _consumer(links: Links, group: GroupDescription, member: MemberDescription) -> Resource:
    parts = (_ROOT, group.group_id, "consumers", member.member_id)
    return {
        **links.item("KafkaConsumer", *parts),
        "consumer_group_id": group.group_id,
        "consumer_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "assignments": links.related(*parts, "assignments"),
    }


async def list_consumers(call: Call) -> web.Response:
    """Return the members of a group."""
    links = Links(call)
    group = await _describe(call)
    items = [_consumer(links, group, member) for member in group.members]
    return links.listing("KafkaConsumerList", items, _ROOT, group.group_id, "consumers")


async def get_consumer(call: Call) -> web.Response:
    """Return one member."""
    links = Links(call)
    group = await _describe(call)
    return item_answer(_consumer(links, group, _find_member(call, group)))


def _find_member(call: Call, group: GroupDescription) -> MemberDescription:
    wanted = call.names["consumer"]
    for member in group.members:
        if member.member_id == wanted:
            return member
    raise MemberNotFoundError(f"group '{group.group_id}' has no member '{wanted}'")


def _assignment(
    links: Links, group: GroupDescription, member: MemberDescription, where: TopicPartition
) -> Resource:
    topic, partition = where
    at = (topic, "partitions", partition)
    parts = (_ROOT, group.group_id, "consumers", member.member_id, "assignments", *at)
    return {
        **links.item("KafkaConsumerAssignment", *parts),
        "consumer_group_id": group.group_id,
        "consumer_id": member.member_id,
        "topic_name": topic,
        "partition_id": partition,
        "partition": links.related("topics", *at),
        "lag": links.related(_ROOT, group.group_id, "lags", *at),
    }


async def list_assignments(call: Call) -> web.Response:
    """Return the partitions that a member reads."""
    links = Links(call)
    group = await _describe(call)
    member = _find_member(call, group)
    is_seen = call.rights.seen(ResourceType.TOPIC)
    shown = (where for where in sorted(member.assignment) if is_seen(where[0]))
    items = [_assignment(links, group, member, where) for where in shown]
    return links.listing(
        "KafkaConsumerAssignmentList",
        items,
        _ROOT,
        group.group_id,
        "consumers",
        member.member_id,
        "assignments",
    )


async def get_assignment(call: Call) -> web.Response:
    """Return one partition that a member reads."""
    links = Links(call)
    group = await _describe(call)
    member = _find_member(call, group)
    topic, partition = call.names["topic"], call.names["partition"]
    is_seen = call.rights.seen(ResourceType.TOPIC)
    for where in member.assignment:
        if where[0] == topic and str(where[1]) == partition and is_seen(topic):
            return item_answer(_assignment(links, group, member, where))
    raise ResourceNotFoundError(
        f"member '{member.member_id}' does not read '{topic}-{partition}' now"
    )


# -- lag -------------------------------------------------------------------------------------------


def _reader(lag: Lag) -> tuple[str, str | None, str]:
    reader = lag.place.reader
    if reader is None:
        return "", None, ""
    return reader.member_id, reader.instance_id, reader.client_id


def _lag(links: Links, group_id: str, lag: Lag) -> Resource:
    topic, partition = lag.place.committed.topic, lag.place.committed.partition
    parts = (_ROOT, group_id, "lags", topic, "partitions", partition)
    consumer_id, instance_id, client_id = _reader(lag)
    return {
        **links.item("KafkaConsumerLag", *parts),
        "consumer_group_id": group_id,
        "topic_name": topic,
        "partition_id": partition,
        "consumer_id": consumer_id,
        "instance_id": instance_id,
        "client_id": client_id,
        "current_offset": lag.place.committed.offset,
        "log_end_offset": lag.end_offset,
        "lag": lag.lag,
    }


async def list_lags(call: Call) -> web.Response:
    """Return the lag of a group in each partition."""
    links = Links(call)
    group = await _describe(call)
    items = [_lag(links, group.group_id, lag) for lag in await lags_of(call, group)]
    return links.listing("KafkaConsumerLagList", items, _ROOT, group.group_id, "lags")


async def get_lag(call: Call) -> web.Response:
    """Return the lag of a group in one partition."""
    links = Links(call)
    group = await _describe(call)
    topic, partition = call.names["topic"], call.names["partition"]
    is_seen = call.rights.seen(ResourceType.TOPIC)
    for place in places_of(group, is_seen):
        if place.committed.topic == topic and str(place.committed.partition) == partition:
            for lag in await with_ends(call, [place]):
                return item_answer(_lag(links, group.group_id, lag))
    raise ResourceNotFoundError(
        f"Consumer lags not found: group '{group.group_id}' has committed nothing in '{topic}-{partition}'"
    )


async def get_lag_summary(call: Call) -> web.Response:
    """Return the total lag of a group, and the largest lag of a partition."""
    links = Links(call)
    group = await _describe(call)
    lags = await lags_of(call, group)
    if not lags:
        raise ResourceNotFoundError(
            f"Consumer lags not found: group '{group.group_id}' has committed nothing"
        )
    most = max(lags, key=lambda lag: -1 if lag.lag is None else lag.lag)
    consumer_id, instance_id, client_id = _reader(most)
    at = (most.place.committed.topic, "partitions", most.place.committed.partition)
    parts = (_ROOT, group.group_id, "lag-summary")
    consumer = (_ROOT, group.group_id, "consumers", consumer_id)
    return item_answer(
        {
            **links.item("KafkaConsumerGroupLagSummary", *parts),
            "consumer_group_id": group.group_id,
            "max_lag_consumer_id": consumer_id,
            "max_lag_instance_id": instance_id,
            "max_lag_client_id": client_id,
            "max_lag_topic_name": most.place.committed.topic,
            "max_lag_partition_id": most.place.committed.partition,
            "max_lag": most.lag,
            "total_lag": sum_of_known([lag.lag for lag in lags]),
            "max_lag_consumer": links.related(*consumer) if consumer_id else None,
            "max_lag_partition": links.related("topics", *at),
        }
    )
