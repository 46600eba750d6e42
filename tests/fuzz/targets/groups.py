"""Decoders of groups and REST consumers."""

import msgpack

from http_api.describing.schemas import parse_json
from http_api.formats.json_texts import JsonTexts
from http_api.formats.v3_records import columns_of, parse_record, texts_of
from http_api.v2.consumers import parse_partitions
from milena.model.errors import (
    MalformedRequestError,
    MilenaError,
)
from node.consumers import consumer_messages
from node.groups import group_messages
from node.groups.subscriptions import TopicPattern
from node.peers.codec import decode_header
from node.peers.messages import pack, unpack
from tests.fuzz.targets.http import _encoded
from tests.fuzz.targets.target import Target
from tests.support.clusters.peer_samples import calls_of, fields_of, samples_of


def _v3_records(data: bytes) -> object:
    """In two pieces, as they come from a connection; each is packed as the node does it."""
    texts = JsonTexts(1 << 16)
    found: list[object] = []
    for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
        values, broken = texts.feed(piece)
        if (stored := texts_of(values)) is not None:
            assert stored == columns_of([parse_record(value) for value in values]).values
        found += [_encoded(columns_of([parse_record(value)])) for value in values]
        if broken is not None:
            raise broken
    texts.close()
    return found


def _v3_record_seeds() -> list[bytes]:
    return [
        b'{"partition_id":0,"key":{"type":"STRING","data":"k\\"\\\\"},"value":{"type":"JSON","data":{"a":[1]}}}',
        b'{"value":{"type":"BINARY","data":"dmFsdWU="},"headers":[{"name":"h","value":"aGk="}]}{"value":null}',
        b' {"timestamp":1700000000000,"value":{"type":"json","data":null}}\r\n{"timestamp":"2026-01-31T12:00:00Z"}',
        b'{"value":{"type":"STRING","data":"first"}}\n' * 3
        + b'{"value":{"data":"","type":"STRING"}}\n' * 2,
    ]


def _partitions(data: bytes) -> object:
    found = parse_partitions(parse_json(data))
    assert all(0 <= number < 1 << 63 for _, number in found)
    return found


def _partition_seeds() -> list[bytes]:
    return [
        b'{"partitions":[{"topic":"orders","partition":0},{"topic":"orders","partition":"7"}]}',
        b'{"partitions":[{"topic":"t","partition":9223372036854775807}]}',
    ]


def _topic_pattern(data: bytes) -> object:
    pattern = TopicPattern(data.decode("utf-8", "replace"))
    return [pattern.matches(name) for name in ("orders", "a.b-c_9", "x" * 60)]


def _topic_pattern_seeds() -> list[bytes]:
    return [
        b"orders|pay(ments|outs)?",
        b"^[a-z.\\d-]{1,20}\\w*?[^x-z]+$",
        b"(?:(a|b)*c){3,}\\.",
        b".*",
    ]


_CALLS = calls_of(group_messages) | calls_of(consumer_messages)


def _group_messages(data: bytes) -> object:
    """A header with the call's name, "request" or "answer", the frame's body, and the fields."""
    parts = decode_header(data)
    match parts:
        case [_, str(name), str(side), bytes(body), dict(fields)] if name in _CALLS:
            call = _CALLS[name]
        case _:
            raise MalformedRequestError("this is about no message")
    message = unpack(call.request if side == "request" else call.answer, fields, body)
    again, chunks = pack(message)
    assert unpack(type(message), again, b"".join(chunks)) == message
    return message


def _group_message_seeds() -> list[bytes]:
    return [
        msgpack.packb([1, name, side, body, fields_of(header)])
        for name in _CALLS
        for side in ("request", "answer")
        for header, body in samples_of(name, side)
    ]


GROUPS: tuple[Target, ...] = (
    Target("v3-records", _v3_records, (MilenaError,), _v3_record_seeds),
    Target("partitions", _partitions, (MilenaError,), _partition_seeds),
    Target("topic-pattern", _topic_pattern, (MilenaError,), _topic_pattern_seeds),
    Target("group-messages", _group_messages, (MilenaError,), _group_message_seeds),
)
