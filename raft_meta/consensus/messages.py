"""The Raft messages as bytes: one positional msgpack array per message, with listed types and checked fields.

The core (``core``) uses dicts whose keys the library chose. Only this module converts them to bytes and back. A message
is one array, ``[code, field, ...]``, in the order of ``_TABLE``. A message with an unknown code, a missing field, or a
value of the wrong type or sign is refused. So the core never gets a malformed message.

Entries travel as ``[command, index, term]`` and must be consecutive.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import msgpack  # type: ignore[import-untyped]  # ships no type hints

from raft_meta.consensus.frames import PeerProtocolError

Entry = tuple[bytes, int, int]
"""A log entry: (command with its kind byte, index, term)."""

Message = dict[str, object]
"""A message in the form that the core uses; the key ``type`` names its type."""

Chunk = tuple[bytes, bool, bool, tuple[int, int], int]
"""A piece of a snapshot: (bytes, is first, is last, transfer id, offset of the bytes)."""

_INT_MAX: Final = 2**63 - 1


def _check_int(value: object) -> object:
    if type(value) is not int or not 0 <= value <= _INT_MAX:
        raise ValueError(f"{value!r} is not a natural number")
    return value


def _check_optional_int(value: object) -> object:
    return None if value is None else _check_int(value)


def _check_bool(value: object) -> object:
    if type(value) is not bool:
        raise ValueError(f"{value!r} is not a truth value")
    return value


def _check_failure(value: object) -> object:
    if type(value) is not int or not 1 <= value <= 7:
        raise ValueError(f"{value!r} is not a failure code")
    return value


def _check_command(value: object) -> object:
    if type(value) is not bytes or not value:
        raise ValueError("a command is not bytes or empty")
    return value


def _check_entries(value: object) -> object:
    if not isinstance(value, list):
        raise TypeError("entries are not a list")
    entries: list[Entry] = []
    expected = None
    for command, index, term in value:
        if type(index) is not int or type(term) is not int or index < 1 or term < 0:
            raise ValueError("an entry's index or term is wrong")
        if expected is not None and index != expected:
            raise ValueError(f"entry {index} follows entry {expected - 1}")
        _check_command(command)
        expected = index + 1
        entries.append((command, index, term))
    return entries


def _check_chunk(value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 6:
        raise ValueError("a snapshot chunk has another shape")
    data, is_first, is_last, incarnation, serial, offset = value
    if type(data) is not bytes:
        raise ValueError("a snapshot chunk is not bytes")
    for flag in (is_first, is_last):
        _check_bool(flag)
    for number in (incarnation, serial, offset):
        _check_int(number)
    return data, is_first, is_last, (incarnation, serial), offset


_Check = Callable[[object], object]

_TERM: Final = ("term", _check_int)
_POSITION: Final = (
    _TERM,
    ("last_log_index", _check_int),
    ("last_log_term", _check_int),
)

# code → (type, fields in wire order). A type whose messages come in two shapes has two codes.
_TABLE: Final[dict[int, tuple[str, tuple[tuple[str, _Check], ...]]]] = {
    1: ("request_vote", _POSITION),
    2: ("response_vote", (_TERM,)),
    3: ("timeout_now", (_TERM,)),
    4: (
        "append_entries",
        (
            _TERM,
            ("commit_index", _check_int),
            ("prevLogIdx", _check_optional_int),
            ("prevLogTerm", _check_optional_int),
            ("entries", _check_entries),
        ),
    ),
    5: (
        "append_entries",
        (_TERM, ("commit_index", _check_int), ("serialized", _check_chunk)),
    ),
    6: (
        "next_node_idx",
        (
            _TERM,
            ("next_node_idx", _check_int),
            ("reset", _check_bool),
            ("success", _check_bool),
            ("learner", _check_bool),
        ),
    ),
    7: ("apply_command", (("command", _check_command),)),
    8: ("apply_command", (("command", _check_command), ("request_id", _check_int))),
    9: (
        "apply_command_response",
        (("request_id", _check_int), ("log_idx", _check_int), ("log_term", _check_int)),
    ),
    10: ("apply_command_response", (("request_id", _check_int), ("error", _check_failure))),
    11: ("pre_vote", (*_POSITION, ("round", _check_int))),
    12: ("pre_vote_reply", (_TERM, ("round", _check_int), ("ok", _check_bool))),
    13: ("bootstrap", (("state", _check_int),)),
    14: ("read_index", (("number", _check_int),)),
    15: ("read_index_reply", (("number", _check_int), ("index", _check_int))),
    16: ("read_round", (_TERM, ("round", _check_int))),
    17: ("read_round_reply", (_TERM, ("round", _check_int))),
}

_BY_SHAPE: Final = {
    (name, frozenset(field for field, _ in fields)): (code, tuple(field for field, _ in fields))
    for code, (name, fields) in _TABLE.items()
}

MESSAGE_TYPES: Final = frozenset(name for name, _ in _TABLE.values())


def encode_message(message: Message) -> bytes:
    """Encode a message that this node sends.

    A message whose shape is not in the table is a bug of this program: AssertionError.
    """
    code, fields = _shape(message["type"], tuple(message))
    values = [message[field] for field in fields]
    if code == 5 and values[2] is not None:
        values[2] = _flatten(values[2])
    encoded: bytes = msgpack.packb([code, *values])
    return encoded


@lru_cache(maxsize=64)
def _shape(name: object, keys: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    """Return code and field order of a message. Cached: messages with equal keys have them in one of a few orders."""
    shape = (name, frozenset(keys) - {"type"})
    assert shape in _BY_SHAPE, f"no message of shape {shape}"
    return _BY_SHAPE[shape]


def _flatten(chunk: object) -> Sequence[object]:
    assert isinstance(chunk, tuple), f"a snapshot chunk is a tuple, not {type(chunk)}"
    data, is_first, is_last, (incarnation, serial), offset = chunk
    return data, is_first, is_last, incarnation, serial, offset


def decode_message(data: bytes) -> Message:
    """Decode and check a peer's message.

    Raises:
        PeerProtocolError: the bytes are not a valid message; the connection must be closed.
    """
    try:
        fields = msgpack.unpackb(data, raw=False, max_map_len=0, max_ext_len=0)
        if not isinstance(fields, list) or not fields or type(fields[0]) is not int:
            raise ValueError("not a message")  # one except clause for all of them
        name, table = _TABLE[fields[0]]
        if len(fields) != len(table) + 1:
            raise ValueError(f"{name} has {len(fields) - 1} fields")
        message: Message = {"type": name}
        for (field, check), value in zip(table, fields[1:], strict=True):
            message[field] = check(value)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise PeerProtocolError(f"malformed Raft message: {error!r}") from error
    return message
