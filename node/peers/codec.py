"""Headers of data frames between nodes, and how errors travel in them.

A frame has a msgpack header and a raw body. The header is an array whose first element says what it is:

| kind | array after the kind | who sends it | body |
|---|---|---|---|
| 0 hello | channel | the dialer, first and once | no |
| 1 request | request id, request type, fields | the dialer | yes |
| 2 answer | request id, fields | the listener | yes |
| 3 refusal | request id, error code, message, leader hint or nil | the listener | no |
| 4 ping | nothing | the dialer, when it waits and hears nothing | no |
| 5 pong | nothing | the listener | no |

Fields are a map of short names to plain values. ``int_field`` and its siblings read them with their types checked: a
peer of another version must get an error, not a ``TypeError`` somewhere inside.
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
"""The header of a request or an answer: whatever msgpack carries, by short names."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""A piece of a body."""


@unique
class PeerChannel(StrEnum):
    """Connections between two nodes, apart so that bulk data does not delay heartbeats."""

    RPC = "rpc"
    FETCH = "fetch"
    CONTROL = "control"


@unique
class Kind(IntEnum):
    """First element of a frame's header."""

    HELLO = 0
    REQUEST = 1
    ANSWER = 2
    REFUSAL = 3
    PING = 4
    PONG = 5


# Plain ints: comparing an IntEnum member costs a Python call, on a path that runs for every frame.
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
    """The dialer's first frame."""
    return _pack((HELLO, channel.value))


def encode_request(request_id: int, request_type: str, fields: Fields) -> bytes:
    """A request; its body follows in the same frame."""
    return _pack((REQUEST, request_id, request_type, fields))


def encode_answer(request_id: int, fields: Fields) -> bytes:
    """A handler's result."""
    return _pack((ANSWER, request_id, fields))


def encode_refusal(request_id: int, error: MilenaError) -> bytes:
    """A handler's error: its code, its sentence, and the leader hint when it has one."""
    leader = error.leader if isinstance(error, NotLeaderError) else None
    return _pack((REFUSAL, request_id, error.code, error.message, leader))


def encode_ping() -> bytes:
    """Asks for a sign of life."""
    return _PING_HEADER


def encode_pong() -> bytes:
    """The sign of life."""
    return _PONG_HEADER


def decode_header(header: Buffer) -> list[object]:
    """The array of a frame's header.

    Raises:
        MalformedRequestError: not a msgpack array that begins with a known kind.
    """
    try:
        parts = msgpack.unpackb(header, strict_map_key=False)
    # TypeError: a list or a map stands as a key.
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MalformedRequestError(f"a frame's header is not msgpack: {error}") from error
    if not (isinstance(parts, list) and parts and type(parts[0]) is int and 0 <= parts[0] <= PONG):
        raise MalformedRequestError("a frame's header is not an array that begins with its kind")
    return cast("list[object]", parts)


def _tree(root: type[MilenaError]) -> Iterator[type[MilenaError]]:
    yield root
    for branch in root.__subclasses__():
        yield from _tree(branch)


# Only what ``milena.model.errors`` defines: a class from elsewhere shares the code of the one that it extends.
_ERRORS: dict[str, type[MilenaError]] = {
    kind.code: kind
    for kind in _tree(MilenaError)
    if kind.__module__ == milena.model.errors.__name__
}


def decode_error(code: object, message: object, leader: object) -> MilenaError:
    """The error that a peer's handler raised, as the same class.

    An unknown code comes from a newer node: nothing can be said about what happened there.
    """
    kind = _ERRORS.get(code) if isinstance(code, str) else None
    text = message if isinstance(message, str) else "(no message)"
    if kind is None:
        return FateUnknownError(f"a peer refused with the unknown code {code!r}: {text}")
    if issubclass(kind, NotLeaderError):
        return kind(text, leader=leader if type(leader) is int else None)
    return kind(text)


def _wrong(fields: Fields, name: str, wanted: str) -> MalformedRequestError:
    got = type(fields[name]).__name__ if name in fields else "nothing"
    return MalformedRequestError(f"field {name!r} of a peer's message must be {wanted}, got {got}")


def int_field(fields: Fields, name: str) -> int:
    """An integer (never a bool)."""
    value = fields.get(name)
    if type(value) is not int:
        raise _wrong(fields, name, "an integer")
    return value


def optional_int_field(fields: Fields, name: str) -> int | None:
    """An integer, nil or absent."""
    return None if fields.get(name) is None else int_field(fields, name)


def bool_field(fields: Fields, name: str) -> bool:
    """True or false."""
    value = fields.get(name)
    if type(value) is not bool:
        raise _wrong(fields, name, "a boolean")
    return value


def str_field(fields: Fields, name: str) -> str:
    """A text."""
    value = fields.get(name)
    if type(value) is not str:
        raise _wrong(fields, name, "a text")
    return value


def optional_str_field(fields: Fields, name: str) -> str | None:
    """A text, nil or absent."""
    return None if fields.get(name) is None else str_field(fields, name)


def bytes_field(fields: Fields, name: str) -> bytes:
    """A byte string."""
    value = fields.get(name)
    if type(value) is not bytes:
        raise _wrong(fields, name, "bytes")
    return value


def optional_bytes_field(fields: Fields, name: str) -> bytes | None:
    """A byte string, nil or absent."""
    return None if fields.get(name) is None else bytes_field(fields, name)


def list_field(fields: Fields, name: str) -> list[object]:
    """A list of whatever."""
    value = fields.get(name)
    if type(value) is not list:
        raise _wrong(fields, name, "a list")
    return value


def int_list_field(fields: Fields, name: str) -> list[int]:
    """A list of integers."""
    values = list_field(fields, name)
    if any(type(value) is not int for value in values):
        raise MalformedRequestError(f"field {name!r} of a peer's message must hold integers only")
    return cast("list[int]", values)


def str_list_field(fields: Fields, name: str) -> list[str]:
    """A list of texts."""
    values = list_field(fields, name)
    if any(type(value) is not str for value in values):
        raise MalformedRequestError(f"field {name!r} of a peer's message must hold texts only")
    return cast("list[str]", values)


def map_list_field(fields: Fields, name: str) -> list[Fields]:
    """A list of maps."""
    values = list_field(fields, name)
    if any(type(value) is not dict for value in values):
        raise MalformedRequestError(f"field {name!r} of a peer's message must hold maps only")
    return cast("list[Fields]", values)


def map_field(fields: Fields, name: str) -> Fields:
    """A map with text keys."""
    value = fields.get(name)
    if type(value) is not dict or any(type(key) is not str for key in value):
        raise _wrong(fields, name, "a map with text keys")
    return value
