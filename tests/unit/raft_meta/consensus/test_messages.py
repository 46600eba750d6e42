"""The codec of the Raft messages: round trips, and the refusal of everything else."""

import msgpack
import pytest

from raft_meta.consensus.frames import PeerProtocolError
from raft_meta.consensus.messages import MESSAGE_TYPES, decode_message, encode_message

POSITION = {"term": 3, "last_log_index": 9, "last_log_term": 2}
GOOD = [
    {"type": "request_vote", **POSITION},
    {"type": "response_vote", "term": 3},
    {"type": "timeout_now", "term": 3},
    {
        "type": "append_entries",
        "term": 3,
        "commit_index": 7,
        "prevLogIdx": 8,
        "prevLogTerm": 2,
        "entries": [(b"\x00a", 9, 2), (b"\x01", 10, 3)],
    },
    {
        "type": "append_entries",
        "term": 3,
        "commit_index": 7,
        "prevLogIdx": None,
        "prevLogTerm": None,
        "entries": [],
    },
    {"type": "append_entries", "term": 3, "commit_index": 7, "serialized": None},
    {
        "type": "append_entries",
        "term": 3,
        "commit_index": 7,
        "serialized": (b"abc", True, False, (4, 1), 0),
    },
    {
        "type": "next_node_idx",
        "term": 3,
        "next_node_idx": 11,
        "reset": False,
        "success": True,
        "learner": False,
    },
    {"type": "apply_command", "command": b"\x00x"},
    {"type": "apply_command", "command": b"\x00x", "request_id": 2**40},
    {"type": "apply_command_response", "request_id": 5, "log_idx": 10, "log_term": 3},
    {"type": "apply_command_response", "request_id": 5, "error": 4},
    {"type": "pre_vote", **POSITION, "round": 2},
    {"type": "pre_vote_reply", "term": 3, "round": 2, "ok": True},
    {"type": "bootstrap", "state": 2},
    {"type": "read_index", "number": 4},
    {"type": "read_index_reply", "number": 4, "index": 9},
    {"type": "read_round", "term": 3, "round": 2},
    {"type": "read_round_reply", "term": 3, "round": 2},
]


@pytest.mark.parametrize("message", GOOD, ids=lambda message: message["type"])
def test_every_message_survives_the_round_trip(message: dict[str, object]) -> None:
    assert decode_message(encode_message(message)) == message


def test_every_type_is_covered_above() -> None:
    assert {message["type"] for message in GOOD} == MESSAGE_TYPES


def test_an_unknown_shape_of_ours_is_a_broken_invariant() -> None:
    with pytest.raises(AssertionError, match="no message of shape"):
        encode_message({"type": "append_entries", "term": 1, "transmission": "start"})


@pytest.mark.parametrize(
    "fields",
    [
        7,
        [],
        {},
        ["request_vote", 1, 2, 3],
        [99, 1],
        [1, 1, 2],
        [1, 1, 2, 3, 4],
        [2, -1],
        [2, True],
        [2, "3"],
        [2, None],
        [2, 2**63],
        [4, 3, 7, 8, 2, 5],
        [4, 3, 7, 8, 2, [[b"a", 9]]],
        [4, 3, 7, 8, 2, [["a", 9, 2]]],
        [4, 3, 7, 8, 2, [[b"", 9, 2]]],
        [4, 3, 7, 8, 2, [[b"a", 0, 2]]],
        [4, 3, 7, 8, 2, [[b"a", 9, -2]]],
        [4, 3, 7, 8, 2, [[b"a", 9, 2], [b"a", 11, 2]]],
        [5, 3, 7, [b"abc", True]],
        [5, 3, 7, ["abc", True, False, 4, 1, 0]],
        [5, 3, 7, [b"abc", 1, False, 4, 1, 0]],
        [5, 3, 7, [b"abc", True, False, 4, 1, -1]],
        [6, 3, 11, 0, True, False],
        [7, b""],
        [7, "command"],
        [10, 5, 0],
        [10, 5, 8],
        [13, b"x"],
    ],
)
def test_anything_else_is_refused(fields: object) -> None:
    with pytest.raises(PeerProtocolError, match="malformed Raft message"):
        decode_message(msgpack.packb(fields))


@pytest.mark.parametrize("data", [b"", b"\x92\x01", b"\xc1", b"\x91\x02\x03", b"\xc7\x01\x05a"])
def test_bytes_that_are_no_msgpack_are_refused(data: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        decode_message(data)
