"""Committed offsets of groups: OffsetCommit (8), OffsetFetch (9), OffsetDelete (47), served by the group's coordinator.

Offsets of groups of both kinds are the same, and either interface may commit them. An offset that a transaction commits
is visible only once the transaction is committed, so every offset here is stable (KIP-447).

Source: Kafka's protocol guide, KIP-496 (OffsetDelete), KIP-709 (several groups in one request).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from http_api.ports.groups import OffsetToCommit, PartitionCommit
from http_api.protocol.kafka_codes import KafkaCode, kafka_code_of
from milena.model.errors import GroupNotEmptyError, InvalidConsumerError, MilenaError
from node.kafka.apis.api import Api, Body, KafkaCall, KafkaServices
from node.kafka.apis.groups import MEMBERSHIP_BYTES_MAX, check_count, group_code_of, invalid_group
from node.kafka.wire import cold

NOT_COMMITTED = -1
"""The offset of a partition for which the group has committed none."""
_Partition = tuple[str, int]


# -- OffsetCommit ----------------------------------------------------------------------------------


async def _offset_commit(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    check_count(sum(len(topic.partitions) for topic in request.topics))
    if (invalid := invalid_group(request.group_id)) is not None:
        return call.answer({"topics": _codes(call, request.topics, {}, invalid)})
    wanted, refused = _offsets(request.topics)
    code = KafkaCode.NONE
    try:
        errors = await services.groups.commit(
            request.group_id,
            wanted,
            member_id=request.member_id,
            generation=request.generation_id_or_member_epoch,
            instance_id=request.group_instance_id if call.version >= 7 else None,
        )
        refused |= {key: _offset_code(error) for key, error in errors.items()}
    except GroupNotEmptyError:
        # Members joined after the commit was checked, and this client is none of them.
        code = KafkaCode.UNKNOWN_MEMBER_ID
    except MilenaError as error:
        code = group_code_of(error)
    return call.answer({"topics": _codes(call, request.topics, refused, code)})


def _offsets(
    topics: Sequence[cold.Message],
) -> tuple[list[OffsetToCommit], dict[_Partition, int]]:
    """Return the offsets to commit, and the codes of those that no partition can have."""
    offsets, refused = [], {}
    for topic in topics:
        for row in topic.partitions:
            if row.committed_offset < 0:
                refused[topic.name, row.partition_index] = int(KafkaCode.OFFSET_OUT_OF_RANGE)
                continue
            offsets.append(
                OffsetToCommit(
                    topic=topic.name,
                    partition=row.partition_index,
                    offset=row.committed_offset,
                    leader_epoch=row.committed_leader_epoch,
                    metadata=row.committed_metadata or "",
                )
            )
    return offsets, refused


def _offset_code(error: MilenaError) -> int:
    is_metadata = isinstance(error, InvalidConsumerError)
    return int(KafkaCode.OFFSET_METADATA_TOO_LARGE) if is_metadata else kafka_code_of(error)


def _codes(
    call: KafkaCall,
    topics: Iterable[cold.Message],
    refused: Mapping[_Partition, int],
    code: KafkaCode,
) -> list[dict[str, Any]]:
    """Return a row for each partition of a request: its own code, or the one of the whole request."""
    return [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": row.partition_index,
                    "error_code": call.note(
                        code or refused.get((topic.name, row.partition_index), 0)
                    ),
                }
                for row in topic.partitions
            ],
        }
        for topic in topics
    ]


# -- OffsetFetch -----------------------------------------------------------------------------------


async def _offset_fetch(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    if call.version < 8:
        return call.answer(await _fetched(services, call, request.group_id, request.topics))
    check_count(len(request.groups))
    check_count(sum(len(one.topics or ()) for one in request.groups))
    rows = [
        {"group_id": one.group_id, **await _fetched(services, call, one.group_id, one.topics)}
        for one in request.groups
    ]
    return call.answer({"groups": rows})


async def _fetched(
    services: KafkaServices,
    call: KafkaCall,
    group_id: str,
    topics: Sequence[cold.Message] | None,
) -> dict[str, Any]:
    """Return a group's offsets and error; ``topics`` None: all of its offsets."""
    named: dict[str, list[int]] = {}
    for topic in topics or ():
        named.setdefault(topic.name, []).extend(topic.partition_indexes)
    check_count(sum(map(len, named.values())))
    code, commits = KafkaCode.NONE, dict[_Partition, PartitionCommit]()
    try:
        keys = {(name, number) for name, numbers in named.items() for number in numbers}
        found = await services.groups.fetch_offsets(group_id, None if topics is None else keys)
        commits = {(one.topic, one.partition): one for one in found}
    except MilenaError as error:
        code = invalid_group(group_id) or group_code_of(error)
    if topics is None:
        for name, number in commits:
            named.setdefault(name, []).append(number)
    return {
        "error_code": call.note(code),
        "topics": [
            {
                "name": name,
                "partitions": [
                    _offset(number, commits.get((name, number)), code) for number in numbers
                ],
            }
            for name, numbers in named.items()
        ],
    }


def _offset(number: int, commit: PartitionCommit | None, code: KafkaCode) -> dict[str, Any]:
    return {
        "partition_index": number,
        "committed_offset": NOT_COMMITTED if commit is None else commit.offset,
        "committed_leader_epoch": -1 if commit is None else commit.leader_epoch,
        "metadata": "" if commit is None else commit.metadata,
        "error_code": code,
    }


# -- OffsetDelete ----------------------------------------------------------------------------------


async def _offset_delete(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    keys = [
        (topic.name, row.partition_index) for topic in request.topics for row in topic.partitions
    ]
    check_count(len(keys))
    if (invalid := invalid_group(request.group_id)) is not None:
        return call.answer({"error_code": call.note(invalid), "topics": []})
    try:
        errors = await services.groups.delete_offsets(request.group_id, keys)
    except MilenaError as error:
        return call.answer({"error_code": call.note(group_code_of(error)), "topics": []})
    refused = {key: kafka_code_of(error) for key, error in errors.items()}
    rows = _codes(call, request.topics, refused, KafkaCode.NONE)
    return call.answer({"error_code": KafkaCode.NONE, "topics": rows})


APIS = (
    Api(
        key=8,
        name="OffsetCommit",
        first=2,
        last=9,
        flexible_from=8,
        handle=_offset_commit,
        bytes_max=MEMBERSHIP_BYTES_MAX,
    ),
    Api(
        key=9,
        name="OffsetFetch",
        first=1,
        last=9,
        flexible_from=6,
        handle=_offset_fetch,
        bytes_max=MEMBERSHIP_BYTES_MAX,
    ),
    Api(
        key=47,
        name="OffsetDelete",
        first=0,
        last=0,
        flexible_from=cold.VERSION_MAX,
        handle=_offset_delete,
    ),
)
