"""Bytes of Kafka clients: the division of a stream into frames, requests of every API and version, SASL messages."""

import base64
from collections.abc import Iterator
from uuid import UUID

from milena.model.access import ScramMechanism
from milena.model.errors import UnauthenticatedError
from node.kafka.apis.registry import APIS
from node.kafka.sasl import CREDENTIALS_OF
from node.kafka.scram import ScramExchange
from node.kafka.wire import cold, fetch, metadata, produce
from node.kafka.wire.frames import FrameSplitter, body_of, head_of
from node.kafka.wire.primitives import MalformedFrameError, WireReader
from tests.fuzz.targets.target import Target
from tests.support.clusters.kafka_clients import request_frame
from tests.support.disk.kafka_batches import KafkaRecord, encoded, numbered
from tests.support.fakes.ports import FakeNode

FRAME_BYTES_MAX = 1 << 20
SIZE_BYTES = 4
DECODERS = {0: produce.decode_request, 1: fetch.decode_request, 3: metadata.decode_request}
"""The APIs whose requests kafka-python does not decode."""
MECHANISMS = sorted(CREDENTIALS_OF)
SAMPLES: dict[str, object] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), 1),
    "float64": 1.0,
    "bool": True,
    "string": "name",
    "uuid": UUID(int=1),
    "bytes": b"bytes",
}
"""A value of each primitive type."""


def sample_request(key: int, version: int) -> bytes:
    """Return a request of an API with one item in each array, and a value in each field; without its size."""
    request = cold._CLASSES[key, "request"]
    body = cold.encode_request(key, version, _fields(request, version))
    return request_frame(key, version, body)[SIZE_BYTES:]


def _fields(kind: cold.Message, version: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, field in kind.fields.items():
        if not field.for_version_q(version):
            continue
        if field.is_struct():
            found[name] = _fields(field.data_class, version)
        elif field.is_struct_array():
            found[name] = [_fields(field.data_class, version)]
        elif field.type_str == "records":
            found[name] = encoded(numbered(KafkaRecord(b"v", b"k")))
        elif field.is_array():
            found[name] = [SAMPLES[field.type_str.removeprefix("[]")]]
        else:
            found[name] = SAMPLES[field.type_str]
    return found


def sample_requests() -> Iterator[bytes]:
    """Yield a request of each API in the first and the last version, and in those beside the first flexible one."""
    for api in APIS.values():
        versions = {api.first, api.last, api.flexible_from - 1, api.flexible_from}
        for version in sorted(versions):
            if api.first <= version <= api.last:
                yield sample_request(api.key, version)


def _request(data: bytes) -> object:
    """Decode a frame as the connection and the handler of its API do."""
    if len(data) < 8:
        raise MalformedFrameError("the splitter lets no shorter frame pass")
    head = head_of(data)
    api = APIS.get(head.key)
    if api is None or not api.first <= head.version <= api.last:
        raise MalformedFrameError("not served")
    _, reader = body_of(data, is_flexible=head.version >= api.flexible_from)
    decode = DECODERS.get(head.key)
    if decode is not None:
        return decode(reader, head.version)
    return cold.decode(head.key, head.version, reader)


def _frames(data: bytes) -> object:
    """Feed a stream in pieces of as many bytes as its first byte says: the pieces must not matter."""
    step, stream = (data[0] or 1, data[1:]) if data else (1, b"")
    whole, sliced = FrameSplitter(FRAME_BYTES_MAX), FrameSplitter(FRAME_BYTES_MAX)
    found = [
        frame for at in range(0, len(stream), step) for frame in sliced.feed(stream[at : at + step])
    ]
    assert found == whole.feed(stream)
    assert sliced.held_bytes == whole.held_bytes <= len(stream)
    for frame in found:
        body_of(frame, is_flexible=len(frame) % 2 == 0)
    return found


def _frame_seeds() -> list[bytes]:
    one, two = (sample_request(key, APIS[key].last) for key in (0, 18))
    sized = [len(frame).to_bytes(SIZE_BYTES, "big") + frame for frame in (one, two)]
    return [bytes([step]) + sized[0] + sized[1] + sized[0][:9] for step in (1, 3, 200)]


def _reseal_frame(data: bytes) -> bytes:
    """Give the first frame of a stream the length that it has."""
    rest = data[1 + SIZE_BYTES :]
    return data[:1] + len(rest).to_bytes(SIZE_BYTES, "big") + rest


def _credentials(data: bytes) -> object:
    """Take the first message of a mechanism, which the first byte chooses."""
    found = CREDENTIALS_OF[MECHANISMS[data[0] % len(MECHANISMS) if data else 0]](data[1:])
    scheme, _, given = found.authorization.partition(" ")
    if scheme == "Basic":
        user, _, password = base64.b64decode(given).decode().partition(":")
        assert found.user == user
        assert password
    else:
        assert scheme == "Bearer"
        assert given.isascii()
        assert given.isprintable()
    return found


def _credential_seeds() -> list[bytes]:
    token = "mln_1_" + "a" * 32
    messages = {
        "PLAIN": (b"\0ann\0secret", b"ann\0ann\0secret", f"\0ann\0{token}".encode()),
        "OAUTHBEARER": (
            f"n,,\x01auth=Bearer {token}\x01\x01".encode(),
            f"n,a=a=2Cb,\x01auth=bearer {token}\x01host=h\x01\x01".encode(),
        ),
    }
    return [
        bytes([MECHANISMS.index(name)]) + message
        for name, found in messages.items()
        for message in found
    ]


def _scram(data: bytes) -> object:
    """Take the messages of a client, a line each; ``NONCE`` in the second one becomes the nonce of the exchange."""
    first, has_second, second = data.partition(b"\n")
    exchange = ScramExchange(ScramMechanism.SHA_256, FakeNode().access.scram_logins, "10.0.0.1")
    answer = exchange.take(first)
    if not has_second:
        return answer
    nonce = answer.removeprefix(b"r=").partition(b",")[0]
    return exchange.take(second.replace(b"NONCE", nonce))


def _scram_seeds() -> list[bytes]:
    proof = base64.b64encode(bytes(32))
    finals = [
        b"c=" + base64.b64encode(header) + b",r=NONCE" + more + b",p=" + proof
        for header, more in ((b"n,,", b""), (b"n,a=ann,", b",x=y"))
    ]
    firsts = [b"n,,n=ann,r=abc", b"n,a=ann,n=ann,r=abc,x=y"]
    return [*firsts, *(b"\n".join(both) for both in zip(firsts, finals, strict=True))]


def _primitives(data: bytes) -> object:
    """Read a structure with every primitive type, in the encoding that the first byte chooses."""
    reader = WireReader(data, 1, is_flexible=bool(data and data[0] & 1))
    found = [reader.int8(), reader.boolean(), reader.int16(), reader.int32(), reader.int64()]
    found += [*reader.int32s(), reader.nullable_string() is None, reader.records() is None]
    reader.skip_tags()
    return found


def _primitive_seeds() -> list[bytes]:
    numbers = bytes(1 + 1 + 2 + 4 + 8)
    old = b"\0\0\0\1\0\0\0\2" + b"\0\1a" + b"\0\0\0\1b"
    compact = b"\2\0\0\0\2" + b"\2a" + b"\2b" + b"\1\0\1x"
    return [b"\0" + numbers + old, b"\1" + numbers + compact]


KAFKA: tuple[Target, ...] = (
    Target("kafka-frames", _frames, (MalformedFrameError,), _frame_seeds, _reseal_frame),
    Target("kafka-request", _request, (MalformedFrameError,), lambda: list(sample_requests())),
    Target("kafka-primitives", _primitives, (MalformedFrameError,), _primitive_seeds),
    Target("kafka-scram", _scram, (UnauthenticatedError,), _scram_seeds),
    Target("kafka-sasl", _credentials, (UnauthenticatedError,), _credential_seeds),
)
