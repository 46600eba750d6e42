"""Groups of Kafka's consumer protocol: ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69).

They are the server groups that HTTP members use. Topics travel as ids. A heartbeat is answered at once, and always with
the whole assignment. Assignors have Kafka's names: ``uniform`` is our ``sticky``.

Source: KIP-848, KIP-1082 (a client chooses its member id), KIP-1099 (kinds of members).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from http_api.ports.groups import HeartbeatAnswer, KafkaHeartbeat, PartitionsByTopic
from http_api.protocol.kafka_codes import KafkaCode
from milena.model.access import Operation, ResourceType
from milena.model.errors import InvalidConsumerError, InvalidTopicNameError, MilenaError
from node.groups import assignors, heartbeat_rules
from node.groups.descriptions import TopicNames, server_state
from node.groups.members import REBALANCE_MS_MIN
from node.groups.rebalance import effective
from node.groups.subscriptions import TopicPattern
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.groups import (
    check_count,
    check_share,
    invalid_group,
    member_code_of,
    not_current,
)
from node.kafka.apis.items import MESSAGE_LENGTH_MAX, ItemError
from node.kafka.rights import needs
from node.kafka.wire import cold
from raft_meta.machine.groups import group_rules
from raft_meta.machine.image import Group, GroupMember, PartitionSet
from raft_meta.machine.topics import partition_sets
from raft_meta.machine.topics.topics import check_name

CLIENT_IDS_FROM = 1
"""The first version in which a client chooses its member id."""
ASSIGNORS = {"uniform": assignors.STICKY, "range": assignors.RANGE}
"""Our names of Kafka's assignors."""
_KAFKA_NAMES = {ours: name for name, ours in ASSIGNORS.items()}
UNCHANGED = -1
"""The rebalance timeout of a member that does not change it."""
CONSUMER_MEMBER = 1


# -- ConsumerGroupHeartbeat ------------------------------------------------------------------------


@serves(68, "ConsumerGroupHeartbeat", versions=(0, 1), access=needs("READ GROUP", "READ TOPIC"))
async def _heartbeat(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    owned = request.topic_partitions or ()
    check_count(sum(len(topic.partitions) for topic in owned))
    check_count(len(request.subscribed_topic_names or ()))
    try:
        call.rights.authorize(Operation.READ, ResourceType.GROUP, (request.group_id,))
        call.rights.authorize_subscription(
            request.subscribed_topic_names or (), request.subscribed_topic_regex
        )
        check_share(services, call, request.group_id)
        answer = await services.members.heartbeat(_asked(services, call, request))
    except ItemError as error:
        return _refused(call, KafkaCode(error.code), error.message)
    except MilenaError as error:
        return _refused(call, member_code_of(error), error.message)
    return call.answer(_answered(answer, services.members.names))


def _refused(call: KafkaCall, code: KafkaCode, message: str) -> Body:
    return call.answer(
        {
            "error_code": call.note(code),
            "error_message": message[:MESSAGE_LENGTH_MAX],
            "member_id": None,
            "member_epoch": 0,
            "heartbeat_interval_ms": 0,
            "assignment": None,
        }
    )


def _answered(answer: HeartbeatAnswer, names: TopicNames) -> dict[str, Any]:
    assigned = names.to_ids(answer.assignment)
    has_left = answer.member_epoch < 0
    return {
        "error_code": KafkaCode.NONE,
        "error_message": None,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval_ms": answer.heartbeat_interval_ms,
        "assignment": None if has_left else {"topic_partitions": _by_id(assigned)},
    }


def _by_id(partitions: PartitionSet) -> list[dict[str, Any]]:
    return [
        {"topic_id": UUID(hex=topic_id), "partitions": list(numbers)}
        for topic_id, numbers in partitions
    ]


def _asked(services: KafkaServices, call: KafkaCall, request: cold.Message) -> KafkaHeartbeat:
    """Return the heartbeat that a request means.

    Raises:
        ItemError: the request contradicts the protocol.
    """
    _check(call, request)
    assignor = request.server_assignor
    if assignor is not None and assignor not in ASSIGNORS:
        raise ItemError(
            KafkaCode.UNSUPPORTED_ASSIGNOR,
            f"There is no assignor {assignor[:100]!r} here: use one of {', '.join(sorted(ASSIGNORS))}.",
        )
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    _check_pattern(pattern)
    member_id = request.member_id
    if not member_id:
        member_id = services.members.new_member_id()
    return KafkaHeartbeat(
        group_id=request.group_id,
        member_id=member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        client_id=call.client_id,
        host=call.host,
        # A topic of an invalid name never exists, so leaving it out changes nothing. Kafka tells of it in Metadata.
        topics=None if names is None else tuple(name for name in names if _may_exist(name)),
        pattern=pattern,
        assignor=None if assignor is None else ASSIGNORS[assignor],
        rebalance_timeout_ms=_rebalance_ms(request.rebalance_timeout_ms),
        owned=_owned(services.members.names, request.topic_partitions),
    )


def _check(call: KafkaCall, request: cold.Message) -> None:
    """Refuse a request that contradicts the protocol.

    Raises:
        ItemError: the message says what to change.
    """
    epoch, problem = request.member_epoch, ""
    if not request.group_id:
        problem = "The group id is empty: name a group."
    elif request.instance_id == "":
        problem = "The instance id is empty: name one, or send null."
    elif not request.member_id and (call.version >= CLIENT_IDS_FROM or epoch):
        problem = "The member id is empty: send the one of the member."
    elif epoch == heartbeat_rules.AWAY and request.instance_id is None:
        problem = "Only a member with an instance id may leave for a while, by epoch -2."
    elif epoch == heartbeat_rules.JOIN:
        problem = _join_problem(request)
    if problem:
        raise ItemError(KafkaCode.INVALID_REQUEST, problem)


def _join_problem(request: cold.Message) -> str:
    if request.rebalance_timeout_ms == UNCHANGED:
        return "A member that joins sends its rebalance timeout."
    if request.topic_partitions is None or request.topic_partitions:
        return "A member that joins owns no partitions: send an empty list of them."
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "A member that joins sends its subscription: topics, or a regular expression."
    return ""


def _check_pattern(pattern: str | None) -> None:
    if not pattern:
        return
    try:
        TopicPattern(pattern)
    except InvalidConsumerError as error:
        raise ItemError(KafkaCode.INVALID_REGULAR_EXPRESSION, error.message) from error


def _may_exist(topic: str) -> bool:
    try:
        check_name(topic)
    except InvalidTopicNameError:
        return False
    return True


def _rebalance_ms(asked_ms: int) -> int | None:
    """Return the rebalance timeout of a request. Clients send the largest integer for "no limit"."""
    if asked_ms == UNCHANGED:
        return None
    return max(REBALANCE_MS_MIN, min(asked_ms, group_rules.DURATION_MS_MAX))


def _owned(names: TopicNames, topics: Iterable[cold.Message] | None) -> PartitionsByTopic | None:
    if topics is None:
        return None
    return names.to_names(
        partition_sets.of(
            (topic.topic_id.hex, number)
            for topic in topics
            if topic.topic_id is not None
            for number in topic.partitions
        )
    )


# -- ConsumerGroupDescribe -------------------------------------------------------------------------


@serves(
    69,
    "ConsumerGroupDescribe",
    versions=(0, 1),
    access=needs("DESCRIBE GROUP", shows="DESCRIBE TOPIC"),
)
async def _describe(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    check_count(len(request.group_ids))
    rows = []
    unknown = await not_current(services)
    # Once each: a row may be large, and a request may name one group ten thousand times.
    for group_id in dict.fromkeys(request.group_ids):
        code, message, found, operations = KafkaCode.NONE, None, None, None
        try:
            call.rights.authorize(Operation.DESCRIBE, ResourceType.GROUP, (group_id,))
            if request.include_authorized_operations:
                operations = call.rights.operations(ResourceType.GROUP, group_id)
            if unknown is not None:
                raise unknown
            found = services.members.describe(group_id)
        except MilenaError as error:
            code = invalid_group(group_id) or member_code_of(error)
            message = error.message[:MESSAGE_LENGTH_MAX]
        row = _not_described(group_id) if found is None else _described(services, call, found)
        rows.append(
            row
            | {
                "error_code": call.note(code),
                "error_message": message,
                "authorized_operations": operations if found is not None else None,
            }
        )
    return call.answer({"groups": rows})


def _not_described(group_id: str) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "group_state": "Dead",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
    }


def _described(services: KafkaServices, call: KafkaCall, group: Group) -> dict[str, Any]:
    is_seen = call.rights.seen(ResourceType.TOPIC)
    return {
        "group_id": group.group_id,
        "group_state": server_state(group),
        "group_epoch": group.generation,
        "assignment_epoch": group.generation,
        "assignor_name": _KAFKA_NAMES.get(group.assignor, group.assignor),
        "members": [_member(services, member, is_seen) for member in group.members],
    }


def _member(
    services: KafkaServices, member: GroupMember, is_seen: Callable[[str], bool]
) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": None,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": f"/{member.host}",
        "subscribed_topic_names": [topic for topic in member.topics if is_seen(topic)],
        "subscribed_topic_regex": member.pattern,
        "assignment": {"topic_partitions": _named(services, effective(member), is_seen)},
        "target_assignment": {"topic_partitions": _named(services, member.target, is_seen)},
        "member_type": CONSUMER_MEMBER,
    }


def _named(
    services: KafkaServices, partitions: PartitionSet, is_seen: Callable[[str], bool]
) -> Sequence[dict[str, Any]]:
    topics = services.metadata.image.topics
    return [
        {
            "topic_id": UUID(hex=topic_id),
            "topic_name": topics[topic_id].name,
            "partitions": list(numbers),
        }
        for topic_id, numbers in partitions
        if topic_id in topics and is_seen(topics[topic_id].name)
    ]


APIS = (_heartbeat, _describe)
