"""The messages of Kafka's consumer protocol, which kafka-python does not have.

They are ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69), in the form of Kafka's message definitions.
``cold`` makes classes of them. Source: KIP-848; KIP-1082 (version 1 of the heartbeat: the client chooses its id),
KIP-1099 (version 1 of the description: kinds of members).
"""

from typing import Any

_ALL = "0+"


def _field(name: str, kind: str, versions: str = _ALL, **more: object) -> dict[str, Any]:
    return {"name": name, "type": kind, "versions": versions} | more


def _nullable(name: str, kind: str, versions: str = _ALL, **more: object) -> dict[str, Any]:
    return _field(name, kind, versions, nullableVersions=versions, default="null", **more)


def _message(key: int, kind: str, name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiKey": key,
        "type": kind,
        "name": name,
        "validVersions": "0-1",
        "flexibleVersions": _ALL,
        "fields": list(fields),
    }


def _partitions(*names: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of a topic with partitions."""
    return [_field("TopicId", "uuid"), *names, _field("Partitions", "[]int32")]


def _assignment(name: str) -> dict[str, Any]:
    topics = _field(
        "TopicPartitions", "[]TopicPartitions", fields=_partitions(_field("TopicName", "string"))
    )
    return _field(name, "Assignment", fields=[topics])


_MEMBER = [
    _field("MemberId", "string"),
    _nullable("InstanceId", "string"),
    _nullable("RackId", "string"),
    _field("MemberEpoch", "int32"),
    _field("ClientId", "string"),
    _field("ClientHost", "string"),
    _field("SubscribedTopicNames", "[]string"),
    _nullable("SubscribedTopicRegex", "string"),
    _assignment("Assignment"),
    _assignment("TargetAssignment"),
    _field("MemberType", "int8", "1+", default="-1", ignorable=True),
]

SCHEMAS = (
    _message(
        68,
        "request",
        "ConsumerGroupHeartbeatRequest",
        _field("GroupId", "string"),
        _field("MemberId", "string"),
        _field("MemberEpoch", "int32"),
        _nullable("InstanceId", "string"),
        _nullable("RackId", "string"),
        _field("RebalanceTimeoutMs", "int32", default="-1"),
        _nullable("SubscribedTopicNames", "[]string"),
        _nullable("SubscribedTopicRegex", "string", "1+"),
        _nullable("ServerAssignor", "string"),
        _nullable("TopicPartitions", "[]TopicPartitions", fields=_partitions()),
    ),
    _message(
        68,
        "response",
        "ConsumerGroupHeartbeatResponse",
        _field("ThrottleTimeMs", "int32"),
        _field("ErrorCode", "int16"),
        _nullable("ErrorMessage", "string"),
        _nullable("MemberId", "string"),
        _field("MemberEpoch", "int32"),
        _field("HeartbeatIntervalMs", "int32"),
        _nullable(
            "Assignment",
            "Assignment",
            fields=[_field("TopicPartitions", "[]TopicPartitions", fields=_partitions())],
        ),
    ),
    _message(
        69,
        "request",
        "ConsumerGroupDescribeRequest",
        _field("GroupIds", "[]string"),
        _field("IncludeAuthorizedOperations", "bool"),
    ),
    _message(
        69,
        "response",
        "ConsumerGroupDescribeResponse",
        _field("ThrottleTimeMs", "int32"),
        _field(
            "Groups",
            "[]DescribedGroup",
            fields=[
                _field("ErrorCode", "int16"),
                _nullable("ErrorMessage", "string"),
                _field("GroupId", "string"),
                _field("GroupState", "string"),
                _field("GroupEpoch", "int32"),
                _field("AssignmentEpoch", "int32"),
                _field("AssignorName", "string"),
                _field("Members", "[]Member", fields=_MEMBER),
                _field("AuthorizedOperations", "bitfield", default="-2147483648"),
            ],
        ),
    ),
)
