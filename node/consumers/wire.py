"""REST consumers' calls on their way to the coordinator: fields of requests and answers."""

from http_api.group_ports import (
    Delivered,
    Delivery,
    GroupOffset,
    NewConsumer,
    OffsetToCommit,
    Reset,
    Seek,
)
from milena.model.errors import MalformedRequestError
from node.peers.codec import (
    Buffer,
    Fields,
    bool_field,
    int_field,
    list_field,
    optional_int_field,
    optional_str_field,
    str_field,
)
from raft_meta.machine.image import ConsumerKey

CREATE = "consumer_create"
DELETE = "consumer_delete"
SUBSCRIBE = "consumer_subscribe"
ASSIGN = "consumer_assign"
VIEW = "consumer_view"
SEEK = "consumer_seek"
RECORDS = "consumer_records"
TAKE_BACK = "consumer_take_back"
COMMIT = "consumer_commit"
COMMITTED = "consumer_committed"
RETURNED = "consumer_returned"
"""Not to a coordinator, but from it: whether a node has given a call's answer to its client."""


def _wrong(what: str) -> MalformedRequestError:
    return MalformedRequestError(f"{what}: it has the wrong shape")


def call_id_of(node_id: int, incarnation: int, number: int) -> str:
    """Names a records call for ever."""
    return f"{node_id}.{incarnation}.{number}"


def node_of(call_id: str) -> int | None:
    """The node that made the call, if it is one of ours."""
    node_id = call_id.partition(".")[0]
    return int(node_id) if node_id.isdecimal() else None


def consumer_key(fields: Fields) -> ConsumerKey:
    """The consumer whose call it is."""
    return str_field(fields, "group"), str_field(fields, "instance")


def pack_new(consumer: NewConsumer) -> Fields:
    """What a client asks for, its name aside."""
    return {
        "format": consumer.format,
        "reset": consumer.auto_offset_reset,
        "auto": consumer.is_auto_commit,
        "min_bytes": consumer.fetch_min_bytes,
        "timeout_ms": consumer.request_timeout_ms,
    }


def unpack_new(fields: Fields) -> NewConsumer:
    """The reverse; the name is the field ``instance``."""
    return NewConsumer(
        instance=str_field(fields, "instance"),
        format=str_field(fields, "format"),
        auto_offset_reset=str_field(fields, "reset"),
        is_auto_commit=bool_field(fields, "auto"),
        fetch_min_bytes=int_field(fields, "min_bytes"),
        request_timeout_ms=int_field(fields, "timeout_ms"),
    )


def pack_seek(seek: Seek) -> Fields:
    """Where to."""
    return {
        "topic": seek.topic,
        "partition": seek.partition,
        "offset": seek.offset,
        "timestamp": seek.timestamp_ms,
        "name": None if seek.name is None else seek.name.value,
    }


def unpack_seek(fields: Fields) -> Seek:
    """The reverse."""
    name = optional_str_field(fields, "name")
    try:
        reset = None if name is None else Reset(name)
    except ValueError as error:
        raise _wrong("seek") from error
    return Seek(
        topic=str_field(fields, "topic"),
        partition=int_field(fields, "partition"),
        offset=optional_int_field(fields, "offset"),
        timestamp_ms=optional_int_field(fields, "timestamp"),
        name=reset,
    )


def pack_offset(offset: OffsetToCommit) -> Fields:
    """An offset to commit."""
    return {
        "topic": offset.topic,
        "partition": offset.partition,
        "offset": offset.offset,
        "epoch": offset.leader_epoch,
        "metadata": offset.metadata,
    }


def unpack_offset(fields: Fields) -> OffsetToCommit:
    """The reverse."""
    return OffsetToCommit(
        topic=str_field(fields, "topic"),
        partition=int_field(fields, "partition"),
        offset=int_field(fields, "offset"),
        leader_epoch=int_field(fields, "epoch"),
        metadata=str_field(fields, "metadata"),
    )


def pack_committed(offset: GroupOffset) -> Fields:
    """A committed offset."""
    return {
        "topic": offset.topic,
        "partition": offset.partition,
        "offset": offset.offset,
        "epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "ms": offset.commit_ms,
    }


def unpack_committed(fields: Fields) -> GroupOffset:
    """The reverse."""
    return GroupOffset(
        topic=str_field(fields, "topic"),
        partition=int_field(fields, "partition"),
        offset=int_field(fields, "offset"),
        leader_epoch=int_field(fields, "epoch"),
        metadata=str_field(fields, "metadata"),
        commit_ms=int_field(fields, "ms"),
    )


def pack_delivered(delivered: Delivered) -> tuple[Fields, list[Buffer]]:
    """An answer; the batches travel in the body."""
    fields: Fields = {
        "format": delivered.format,
        "parts": [
            [d.topic, d.partition, d.start_offset, d.end_offset, len(d.batches)]
            for d in delivered.deliveries
        ],
    }
    return fields, [d.batches for d in delivered.deliveries]


def unpack_delivered(fields: Fields, body: bytes, call_id: str) -> Delivered:
    """The reverse, as the answer to this call."""
    deliveries = []
    position = 0
    for row in list_field(fields, "parts"):
        match row:
            case [str(topic), int(partition), int(start), int(end), int(size)]:
                batches = body[position : position + size]
            case _:
                raise _wrong("delivery")
        position += size
        deliveries.append(
            Delivery(
                topic=topic,
                partition=partition,
                start_offset=start,
                end_offset=end,
                batches=batches,
            )
        )
    return Delivered(format=str_field(fields, "format"), deliveries=deliveries, call_id=call_id)
