"""The Raft messages as bytes: one positional msgpack array per message, with listed types and checked fields.

The core (``core``) uses dicts whose keys the library chose. Only this module converts them to bytes and back. A message
is one array, ``[code, field, ...]``, in the order of ``_TABLE``. A message with an unknown code, a missing field, or a
value of the wrong type or sign is refused. So the core never gets a malformed message.

Entries travel as ``[command, index, term]`` and must be consecutive.
"""

from functools import lru_cache
from typing import Annotated, Final, cast

from msgspec import Meta
from msgspec.msgpack import Decoder, encode

from raft_meta.consensus.frames import PeerProtocolError

Entry = tuple[bytes, int, int]
"""A log entry: (command with its kind byte, index, term)."""

Message = dict[str, object]
"""A message in the form that the core uses; the key ``type`` names its type."""

Chunk = tuple[bytes, bool, bool, tuple[int, int], int]
"""A piece of a snapshot: (bytes, is first, is last, transfer id, offset of the bytes)."""

CHUNK: Final = 5
"""The code of a message with a piece of a snapshot."""
_Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Command = Annotated[bytes, Meta(min_length=1)]
_Failure = Annotated[int, Meta(ge=1, le=7)]
_Entries = list[tuple[_Command, Annotated[int, Meta(ge=1)], _Natural]]
_Chunk = tuple[bytes, bool, bool, _Natural, _Natural, _Natural] | None
"""A ``Chunk`` as it travels: with the two numbers of its transfer id side by side."""

_TERM: Final[dict[str, object]] = {"term": _Natural}
_POSITION: Final[dict[str, object]] = {
    **_TERM,
    "last_log_index": _Natural,
    "last_log_term": _Natural,
}

# code → (type, fields in wire order). A type whose messages come in two shapes has two codes.
_TABLE: Final[dict[int, tuple[str, dict[str, object]]]] = {
    1: ("request_vote", _POSITION),
    2: ("response_vote", _TERM),
    3: ("timeout_now", _TERM),
    4: (
        "append_entries",
        {
            **_TERM,
            "commit_index": _Natural,
            "prevLogIdx": _Natural | None,
            "prevLogTerm": _Natural | None,
            "entries": _Entries,
        },
    ),
    CHUNK: ("append_entries", {**_TERM, "commit_index": _Natural, "serialized": _Chunk}),
    6: (
        "next_node_idx",
        {**_TERM, "next_node_idx": _Natural, "reset": bool, "success": bool, "learner": bool},
    ),
    7: ("apply_command", {"command": _Command}),
    8: ("apply_command", {"command": _Command, "request_id": _Natural}),
    9: (
        "apply_command_response",
        {"request_id": _Natural, "log_idx": _Natural, "log_term": _Natural},
    ),
    10: ("apply_command_response", {"request_id": _Natural, "error": _Failure}),
    11: ("pre_vote", {**_POSITION, "round": _Natural}),
    12: ("pre_vote_reply", {**_TERM, "round": _Natural, "ok": bool}),
    13: ("bootstrap", {"state": _Natural}),
    14: ("read_index", {"number": _Natural}),
    15: ("read_index_reply", {"number": _Natural, "index": _Natural}),
    16: ("read_round", {**_TERM, "round": _Natural}),
    17: ("read_round_reply", {**_TERM, "round": _Natural}),
}

_BY_SHAPE: Final = {
    (name, frozenset(fields)): (code, tuple(fields)) for code, (name, fields) in _TABLE.items()
}
_DECODERS: Final = {
    code: Decoder(tuple.__class_getitem__((int, *fields.values())))
    for code, (_, fields) in _TABLE.items()
}

MESSAGE_TYPES: Final = frozenset(name for name, _ in _TABLE.values())


def encode_message(message: Message) -> bytes:
    """Encode a message that this node sends.

    A message whose shape is not in the table is a bug of this program: AssertionError.
    """
    code, fields = _shape(message["type"], tuple(message))
    values = [message[field] for field in fields]
    if code == CHUNK and values[2] is not None:
        values[2] = _flattened(*cast("Chunk", values[2]))
    return encode([code, *values])


def _flattened(
    data: bytes, is_first: bool, is_last: bool, transfer_id: tuple[int, int], offset: int
) -> tuple[bytes, bool, bool, int, int, int]:
    return data, is_first, is_last, *transfer_id, offset


@lru_cache(maxsize=64)
def _shape(name: object, keys: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """Return code and field order of a message. Cached: messages with equal keys have them in one of a few orders."""
    shape = (name, frozenset(keys) - {"type"})
    assert shape in _BY_SHAPE, f"no message of shape {shape}"
    return _BY_SHAPE[shape]


def decode_message(data: bytes) -> Message:
    """Decode and check a peer's message.

    Raises:
        PeerProtocolError: the bytes are not a valid message; the connection must be closed.
    """
    try:
        # The code is the first item of a short array, so it is the second byte.
        name, fields = _TABLE[data[1]]
        values = _DECODERS[data[1]].decode(data)
        message: Message = {"type": name}
        message.update(zip(fields, values[1:], strict=True))
        if data[1] == CHUNK and values[-1] is not None:
            piece, is_first, is_last, incarnation, serial, offset = values[-1]
            message["serialized"] = (piece, is_first, is_last, (incarnation, serial), offset)
        if "entries" in fields and (indexes := [index for _, index, _ in values[-1]]):
            first, count = indexes[0], len(indexes)
            if indexes != list(range(first, first + count)):
                raise ValueError(f"the entries from {first} have indexes {indexes}")
    except (ValueError, LookupError) as error:
        raise PeerProtocolError(f"malformed Raft message: {error!r}") from error
    return message
