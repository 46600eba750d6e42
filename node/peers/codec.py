"""Headers of the frames between nodes on the data channel, and the encoding of errors.

A frame has a msgpack header and a raw body. The header is an array whose first element is the kind:

| kind | array after the kind | sent by | body |
|---|---|---|---|
| 0 hello | channel | the dialer, as the first frame, once | no |
| 1 request | request id, request type, fields | the dialer | yes |
| 2 answer | request id, fields | the listener | yes |
| 3 refusal | request id, error code, message, leader hint or nil | the listener | no |
| 4 ping | nothing | the dialer, in the rounds of its watch (``watch``) | no |
| 5 pong | nothing | the listener | no |

Fields are a map of short names to plain values. Code that reads fields must check their types. A peer of another
release may send other types. It must then get an error, and the handler must not raise ``TypeError``.
``node.peers.messages`` checks declared messages.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum, StrEnum, unique
from typing import TypeAlias, cast

import msgpack  # type: ignore[import-untyped]  # ships no type hints

import milena.model.errors
from milena.model.errors import (
    FateUnknownError,
    MalformedRequestError,
    MilenaError,
    NotLeaderError,
)

Fields: TypeAlias = dict[str, object]
"""The fields of a request or a response: msgpack values by short names."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""A piece of a body."""


@unique
class PeerChannel(StrEnum):
    """The kinds of connections between two nodes. They are separate, so that bulk data does not delay heartbeats."""

    RPC = "rpc"
    FETCH = "fetch"
    CONTROL = "control"


@unique
class Kind(IntEnum):
    """The first element of a frame's header."""

    HELLO = 0
    REQUEST = 1
    ANSWER = 2
    REFUSAL = 3
    PING = 4
    PONG = 5


# Plain ints: comparing with a member of an IntEnum takes a Python call, and this code runs for every frame.
HELLO = int(Kind.HELLO)
REQUEST = int(Kind.REQUEST)
ANSWER = int(Kind.ANSWER)
REFUSAL = int(Kind.REFUSAL)
PING = int(Kind.PING)
PONG = int(Kind.PONG)

_pack: Callable[[object], bytes] = msgpack.Packer(autoreset=True).pack
_PING_HEADER = _pack((PING,))
_PONG_HEADER = _pack((PONG,))


def encode_hello(channel: PeerChannel) -> bytes:
    """Encode the dialer's first frame."""
    return _pack((HELLO, channel.value))


def encode_request(request_id: int, request_type: str, fields: Fields) -> bytes:
    """Encode a request; its body follows in the same frame."""
    return _pack((REQUEST, request_id, request_type, fields))


def encode_answer(request_id: int, fields: Fields) -> bytes:
    """Encode a handler's result; its body follows in the same frame."""
    return _pack((ANSWER, request_id, fields))


def encode_refusal(request_id: int, error: MilenaError) -> bytes:
    """Encode a handler's error: its code, its message, and its leader hint if it has one."""
    leader = error.leader if isinstance(error, NotLeaderError) else None
    return _pack((REFUSAL, request_id, error.code, error.message, leader))


def encode_ping() -> bytes:
    """Encode a ping, which asks the peer for a sign of life."""
    return _PING_HEADER


def encode_pong() -> bytes:
    """Encode the response to a ping."""
    return _PONG_HEADER


def decode_header(header: Buffer) -> list[object]:
    """Decode a frame's header into its array.

    Raises:
        MalformedRequestError: the header is not a msgpack array that starts with a known kind.
    """
    try:
        parts = msgpack.unpackb(header, strict_map_key=False)
    # TypeError: the header uses a list or a map as a key.
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MalformedRequestError(f"a frame's header is not msgpack: {error}") from error
    if not (isinstance(parts, list) and parts and type(parts[0]) is int and 0 <= parts[0] <= PONG):
        raise MalformedRequestError("a frame's header is not an array that begins with its kind")
    return cast("list[object]", parts)


def _tree(root: type[MilenaError]) -> Iterator[type[MilenaError]]:
    yield root
    for branch in root.__subclasses__():
        yield from _tree(branch)


# Only classes of ``milena.model.errors``. A subclass that is defined elsewhere has the code of its base class.
_ERRORS: dict[str, type[MilenaError]] = {
    kind.code: kind
    for kind in _tree(MilenaError)
    if kind.__module__ == milena.model.errors.__name__
}


def decode_error(code: object, message: object, leader: object) -> MilenaError:
    """Return the error that a peer's handler raised, as an object of the same class.

    An unknown code comes from a node of a newer release. What happened to the request is then unknown.
    """
    kind = _ERRORS.get(code) if isinstance(code, str) else None
    text = message if isinstance(message, str) else "(no message)"
    if kind is None:
        return FateUnknownError(f"a peer refused with the unknown code {code!r}: {text}")
    if issubclass(kind, NotLeaderError):
        return kind(text, leader=leader if type(leader) is int else None)
    return kind(text)
