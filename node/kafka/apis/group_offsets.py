"""Committed offsets of groups: OffsetCommit (8), OffsetFetch (9), OffsetDelete (47), served by the group's coordinator.

Offsets of groups of both kinds are the same, and either interface may commit them. An offset that a transaction commits
is visible only once the transaction is committed. A client that asks for stable offsets waits for it (KIP-447).

From version 10 on, topics are named by their ids.

Source: Kafka's protocol guide, KIP-496 (OffsetDelete), KIP-709 (several groups in one request), KIP-848 (member epochs,
topic ids).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID

from http_api.ports.groups import OffsetToCommit, PartitionCommit, TopicOffset
from http_api.protocol.errors import kafka_code_of
from http_api.protocol.kafka_codes import KafkaCode
from milena.model.access import Operation, ResourceType
from milena.model.errors import (
    GroupNotEmptyError,
    InvalidConsumerError,
    MilenaError,
    StaleMemberEpochError,
    TopicNotFoundError,
)
from node.config.budgets import BARRIER_MS
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.groups import (
    MEMBERSHIP_BYTES_MAX,
    check_count,
    check_share,
    forbidden_group,
    group_code_of,
    invalid_group,
)
from node.kafka.apis.items import NO_ID
from node.kafka.rights import needs
from node.kafka.wire import cold
from raft_meta.machine import transactional_ids

IDS_FROM = 10
"""The first version of OffsetCommit and OffsetFetch in which topics have ids in place of names."""
NOT_COMMITTED = -1
"""The offset of a partition for which the group has committed none."""
_Partition = tuple[str, int]


# -- OffsetCommit ----------------------------------------------------------------------------------


@serves(
    8,
    "OffsetCommit",
    versions=(2, 10),
    access=needs("READ GROUP", "READ TOPIC"),
    bytes_max=MEMBERSHIP_BYTES_MAX,
)
async def _offset_commit(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    check_count(sum(len(topic.partitions) for topic in request.topics))
    group_id = request.group_id
    forbidden = forbidden_group(call, Operation.READ, group_id)
    topics = await _named(services, call, request.topics)
    if (wrong := forbidden or invalid_group(group_id)) is not None:
        return call.answer({"topics": _codes(call, topics, {}, wrong)})
    wanted, refused = _offsets(call, topics)
    code = KafkaCode.NONE
    try:
        check_share(services, call, group_id)
        errors = await services.groups.commit(
            group_id,
            wanted,
            member_id=request.member_id,
            generation=request.generation_id_or_member_epoch,
            instance_id=request.group_instance_id if call.version >= 7 else None,
        )
        refused |= {key: _offset_code(call, error) for key, error in errors.items()}
    except GroupNotEmptyError:
        # Members joined after the commit was checked, and this client is none of them.
        code = KafkaCode.UNKNOWN_MEMBER_ID
    except MilenaError as error:
        code = _offsets_code_of(error)
    return call.answer({"topics": _codes(call, topics, refused, code)})


def _offsets_code_of(error: MilenaError) -> KafkaCode:
    """Return Kafka's code for an error of a request for offsets. A stale epoch has another code in heartbeats."""
    if isinstance(error, StaleMemberEpochError):
        return KafkaCode.STALE_MEMBER_EPOCH
    return group_code_of(error)


class _NamedTopic(NamedTuple):
    """A topic of a request. ``name`` None: the client named it by an id that does not exist, or that it may not see."""

    name: str | None
    topic_id: UUID
    partitions: Sequence[Any]
    """Rows of OffsetCommit and OffsetDelete, or numbers."""

    def key(self, version: int) -> dict[str, Any]:
        """Return the field by which a response names the topic."""
        return {"topic_id": self.topic_id} if version >= IDS_FROM else {"name": self.name}


async def _named(
    services: KafkaServices,
    call: KafkaCall,
    topics: Iterable[cold.Message],
    field: str = "partitions",
) -> list[_NamedTopic]:
    """Return the topics of a request with their names. ``field``: the field that has a topic's partitions."""
    if call.version < IDS_FROM:
        return [_NamedTopic(topic.name, NO_ID, getattr(topic, field)) for topic in topics]
    ids = [topic.topic_id or NO_ID for topic in topics]
    image = services.metadata.image
    if any(topic_id.hex not in image.topics for topic_id in ids):
        # The client has seen the topic at another node, so this node's image may be behind.
        with suppress(MilenaError):
            image = await services.metadata.barrier(timeout_ms=BARRIER_MS)
    found = [image.topics.get(topic_id.hex) for topic_id in ids]
    is_seen = call.rights.seen(ResourceType.TOPIC)
    return [
        _NamedTopic(
            None if known is None or not is_seen(known.name) else known.name,
            topic_id,
            getattr(topic, field),
        )
        for known, topic_id, topic in zip(found, ids, topics, strict=True)
    ]


def _offsets(
    call: KafkaCall, topics: Sequence[_NamedTopic]
) -> tuple[list[OffsetToCommit], dict[_Partition, int]]:
    """Return the offsets to commit, and the codes of those that are refused. One below 0 takes a committed one back."""
    offsets: list[OffsetToCommit] = []
    refused: dict[_Partition, int] = {}
    for topic in topics:
        if topic.name is None:
            continue
        if not call.rights.permits(Operation.READ, ResourceType.TOPIC, topic.name):
            code = int(KafkaCode.TOPIC_AUTHORIZATION_FAILED)
            refused |= {(topic.name, row.partition_index): code for row in topic.partitions}
            continue
        offsets += [
            TopicOffset(
                topic=topic.name,
                partition=row.partition_index,
                offset=row.committed_offset,
                leader_epoch=row.committed_leader_epoch,
                metadata=row.committed_metadata or "",
                topic_id=topic.topic_id.hex if call.version >= IDS_FROM else "",
            )
            for row in topic.partitions
        ]
    return offsets, refused


def _offset_code(call: KafkaCall, error: MilenaError) -> int:
    if isinstance(error, StaleMemberEpochError):
        return int(KafkaCode.STALE_MEMBER_EPOCH)
    if isinstance(error, TopicNotFoundError) and call.version >= IDS_FROM:
        return int(KafkaCode.UNKNOWN_TOPIC_ID)
    is_metadata = isinstance(error, InvalidConsumerError)
    return int(KafkaCode.OFFSET_METADATA_TOO_LARGE) if is_metadata else kafka_code_of(error)


def _codes(
    call: KafkaCall,
    topics: Iterable[_NamedTopic],
    refused: Mapping[_Partition, int],
    code: KafkaCode,
) -> list[dict[str, Any]]:
    """Return a row for each partition of a request: its own code, or the one of the whole request."""

    def code_of(name: str | None, number: int) -> int:
        if name is None:
            return code or KafkaCode.UNKNOWN_TOPIC_ID
        return code or refused.get((name, number), 0)

    return [
        {
            **topic.key(call.version),
            "partitions": [
                {
                    "partition_index": row.partition_index,
                    "error_code": call.note(code_of(topic.name, row.partition_index)),
                }
                for row in topic.partitions
            ],
        }
        for topic in topics
    ]


# -- OffsetFetch -----------------------------------------------------------------------------------


@serves(
    9,
    "OffsetFetch",
    versions=(1, 10),
    access=needs("DESCRIBE GROUP", "DESCRIBE TOPIC", shows="DESCRIBE TOPIC"),
    bytes_max=MEMBERSHIP_BYTES_MAX,
)
async def _offset_fetch(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    if call.version < 8:
        topics = request.topics
        named = (
            topics if topics is None else await _named(services, call, topics, "partition_indexes")
        )
        needs_stable = call.version >= 7 and request.require_stable
        return call.answer(
            await _fetched(services, call, request.group_id, named, needs_stable=needs_stable)
        )
    check_count(len(request.groups))
    check_count(sum(len(one.topics or ()) for one in request.groups))
    rows = []
    whole: set[str] = set()
    for one in request.groups:
        # All offsets of a group once: there may be many, and a request may ask for them ten thousand times.
        if one.topics is None:
            if one.group_id in whole:
                continue
            whole.add(one.group_id)
        rows.append(await _group(services, call, one, needs_stable=request.require_stable))
    return call.answer({"groups": rows})


async def _group(
    services: KafkaServices, call: KafkaCall, asked: cold.Message, *, needs_stable: bool
) -> dict[str, Any]:
    """Return the offsets of one group of a request."""
    topics = asked.topics
    named = topics if topics is None else await _named(services, call, topics, "partition_indexes")
    code = KafkaCode.NONE
    if call.version >= 9 and asked.member_epoch >= 0:
        try:
            member_id = asked.member_id or ""
            await services.members.check_member(asked.group_id, member_id, asked.member_epoch)
        except MilenaError as error:
            code = _offsets_code_of(error)
    row = await _fetched(services, call, asked.group_id, named, code, needs_stable=needs_stable)
    return {"group_id": asked.group_id, **row}


async def _fetched(
    services: KafkaServices,
    call: KafkaCall,
    group_id: str,
    topics: Sequence[_NamedTopic] | None,
    code: KafkaCode = KafkaCode.NONE,
    *,
    needs_stable: bool,
) -> dict[str, Any]:
    """Return a group's offsets and error; ``topics`` None: all of its offsets. ``code``: why there are none.

    ``needs_stable``: refuse partitions for which an open transaction has staged offsets.
    """
    check_count(sum(len(topic.partitions) for topic in topics or ()))
    code = forbidden_group(call, Operation.DESCRIBE, group_id) or code
    kind = ResourceType.TOPIC
    named = {topic.name for topic in topics or () if topic.name}
    seen = {name for name in named if call.rights.permits(Operation.DESCRIBE, kind, name)}
    keys = {
        (one.name, number) for one in topics or () if one.name in seen for number in one.partitions
    }
    commits: dict[_Partition, PartitionCommit] = {}
    unstable: frozenset[_Partition] = frozenset()

    def code_of(name: str | None) -> int:
        if name is None:
            return KafkaCode.UNKNOWN_TOPIC_ID
        is_forbidden = topics is not None and name not in seen
        return code or (KafkaCode.TOPIC_AUTHORIZATION_FAILED if is_forbidden else KafkaCode.NONE)

    try:
        if code is KafkaCode.NONE:
            found = await services.groups.fetch_offsets(group_id, None if topics is None else keys)
            commits = {(one.topic, one.partition): one for one in found}
            if needs_stable:
                unstable = _unstable(services, group_id)
    except MilenaError as error:
        code = invalid_group(group_id) or group_code_of(error)
    return {
        "error_code": call.note(code),
        "topics": [
            {
                **topic.key(call.version),
                "partitions": [
                    _unstable_offset(number)
                    if (topic.name or "", number) in unstable
                    else _offset(
                        number,
                        None if topic.name is None else commits.get((topic.name, number)),
                        call.note(code_of(topic.name)),
                    )
                    for number in topic.partitions
                ],
            }
            for topic in (
                _all_topics(services, call, {*commits, *unstable}) if topics is None else topics
            )
        ],
    }


def _unstable(services: KafkaServices, group_id: str) -> frozenset[_Partition]:
    """Return the partitions for which an open transaction has staged offsets of the group."""
    image = services.metadata.image
    return frozenset(
        (image.topics[topic_id].name, number)
        for topic_id, number in transactional_ids.unstable_in(image, group_id)
    )


def _unstable_offset(number: int) -> dict[str, Any]:
    # The client asks again until the transaction has ended (KIP-447).
    return _offset(number, None, KafkaCode.UNSTABLE_OFFSET_COMMIT)


def _all_topics(
    services: KafkaServices, call: KafkaCall, commits: Iterable[_Partition]
) -> list[_NamedTopic]:
    """Return the topics with committed offsets, as far as the client may see them."""
    ids = services.metadata.image.topic_ids
    is_seen = call.rights.seen(ResourceType.TOPIC)
    numbers: dict[str, list[int]] = {}
    for name, number in commits:
        numbers.setdefault(name, []).append(number)
    # A topic without an id was deleted in the meantime.
    return [
        _NamedTopic(name, UUID(hex=ids[name]), of)
        for name, of in numbers.items()
        if name in ids and is_seen(name)
    ]


def _offset(number: int, commit: PartitionCommit | None, code: int) -> dict[str, Any]:
    return {
        "partition_index": number,
        "committed_offset": NOT_COMMITTED if commit is None else commit.offset,
        "committed_leader_epoch": -1 if commit is None else commit.leader_epoch,
        "metadata": "" if commit is None else commit.metadata,
        "error_code": code,
    }


# -- OffsetDelete ----------------------------------------------------------------------------------


@serves(47, "OffsetDelete", versions=(0, 0), access=needs("DELETE GROUP", "READ TOPIC"))
async def _offset_delete(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    keys = [
        (topic.name, row.partition_index) for topic in request.topics for row in topic.partitions
    ]
    check_count(len(keys))
    group_id = request.group_id
    wrong = forbidden_group(call, Operation.DELETE, group_id) or invalid_group(group_id)
    if wrong is not None:
        return call.answer({"error_code": call.note(wrong), "topics": []})
    forbidden = {
        topic.name
        for topic in request.topics
        if not call.rights.permits(Operation.READ, ResourceType.TOPIC, topic.name)
    }

    async def note(topic: str, partitions: Sequence[int]) -> None:
        change = {"group_id": group_id, "topic": topic, "partitions": list(partitions)}
        await services.admin.note("delete_offsets", change)

    try:
        errors = await services.groups.delete_offsets(
            group_id, [key for key in keys if key[0] not in forbidden], note=note
        )
    except MilenaError as error:
        return call.answer({"error_code": call.note(group_code_of(error)), "topics": []})
    refused = {key: kafka_code_of(error) for key, error in errors.items()}
    code = int(KafkaCode.TOPIC_AUTHORIZATION_FAILED)
    refused |= {key: code for key in keys if key[0] in forbidden}
    topics = [_NamedTopic(topic.name, NO_ID, topic.partitions) for topic in request.topics]
    rows = _codes(call, topics, refused, KafkaCode.NONE)
    return call.answer({"error_code": KafkaCode.NONE, "topics": rows})


APIS = (_offset_commit, _offset_fetch, _offset_delete)
