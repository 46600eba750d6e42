"""Calls about groups between nodes: fields of requests and answers. In heartbeats topics go by name, as clients do.

Fields that a peer of another release does not know are passed over, those that it does not send have their defaults.
"""

from collections.abc import Iterable

from http_api.group_ports import Heartbeat, HeartbeatAnswer
from milena.model.errors import FateUnknownError, MalformedRequestError
from node.metadata.topic_partitions import pack_partitions, partitions_field
from node.peers.codec import (
    Fields,
    int_field,
    list_field,
    optional_int_field,
    optional_str_field,
    str_field,
    str_list_field,
)
from raft_meta.machine.commands import OffsetCommit

HEARTBEAT = "group_heartbeat"
COMMIT = "group_commit"
DELETE = "group_delete"


def pack_heartbeat(heartbeat: Heartbeat) -> Fields:
    """All but ``wait_ms``, which goes with the call."""
    return {
        "member": heartbeat.member_id,
        "epoch": heartbeat.member_epoch,
        "instance": heartbeat.instance_id,
        "client": heartbeat.client_id,
        "host": heartbeat.host,
        "topics": None if heartbeat.topics is None else list(heartbeat.topics),
        "pattern": heartbeat.pattern,
        "assignor": heartbeat.assignor,
        "session_ms": heartbeat.session_timeout_ms,
        "rebalance_ms": heartbeat.rebalance_timeout_ms,
        "owned": None if heartbeat.owned is None else pack_partitions(heartbeat.owned),
    }


def parse_heartbeat(fields: Fields) -> Heartbeat:
    """The heartbeat of a request."""
    return Heartbeat(
        member_id=str_field(fields, "member"),
        member_epoch=int_field(fields, "epoch"),
        instance_id=optional_str_field(fields, "instance"),
        client_id=str_field(fields, "client"),
        host=str_field(fields, "host"),
        topics=None if fields.get("topics") is None else str_list_field(fields, "topics"),
        pattern=optional_str_field(fields, "pattern"),
        assignor=optional_str_field(fields, "assignor"),
        session_timeout_ms=optional_int_field(fields, "session_ms"),
        rebalance_timeout_ms=optional_int_field(fields, "rebalance_ms"),
        owned=None if fields.get("owned") is None else partitions_field(fields, "owned"),
        wait_ms=int_field(fields, "wait_ms"),
    )


def pack_answer(answer: HeartbeatAnswer) -> Fields:
    """The answer to a heartbeat."""
    return {
        "member": answer.member_id,
        "epoch": answer.member_epoch,
        "generation": answer.generation,
        "interval_ms": answer.heartbeat_interval_ms,
        "assignment": pack_partitions(answer.assignment),
        "pending": pack_partitions(answer.pending),
    }


def parse_answer(fields: Fields) -> HeartbeatAnswer:
    """Read the answer to a heartbeat.

    Raises:
        FateUnknownError: it has the wrong shape; what it was to say is not known.
    """
    try:
        return HeartbeatAnswer(
            member_id=str_field(fields, "member"),
            member_epoch=int_field(fields, "epoch"),
            generation=int_field(fields, "generation"),
            heartbeat_interval_ms=int_field(fields, "interval_ms"),
            assignment=partitions_field(fields, "assignment"),
            pending=partitions_field(fields, "pending"),
        )
    except MalformedRequestError as error:
        raise FateUnknownError(f"the coordinator's answer: {error.message}") from error


def pack_commit(
    offsets: Iterable[OffsetCommit], *, member_id: str | None, member_epoch: int
) -> Fields:
    """Offsets to commit, by topic id."""
    return {
        "member": member_id,
        "epoch": member_epoch,
        "offsets": [
            [row.topic_id, row.partition, row.offset, row.leader_epoch, row.metadata]
            for row in offsets
        ],
    }


def parse_offsets(fields: Fields) -> tuple[OffsetCommit, ...]:
    """The offsets of a commit."""
    found: list[OffsetCommit] = []
    for row in list_field(fields, "offsets"):
        match row:
            case [str(topic_id), int(partition), int(offset), int(epoch), str(metadata)]:
                found.append(
                    OffsetCommit(
                        topic_id=topic_id,
                        partition=partition,
                        offset=offset,
                        leader_epoch=epoch,
                        metadata=metadata,
                    )
                )
            case _:
                raise MalformedRequestError("group_commit: an offset has the wrong shape")
    return tuple(found)
