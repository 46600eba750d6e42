"""Decoders of what nodes tell each other."""

import msgpack

from milena.model.errors import (
    MalformedRequestError,
    MilenaError,
)
from node.peers.codec import decode_error, decode_header
from node.replication.fetch_wire import parse_log_starts, parse_positions, parse_rows
from raft_meta.consensus.frames import (
    Channel,
    FrameDecoder,
    FrameEncoder,
    Handshake,
    HandshakeRole,
    PeerIdentity,
    PeerProtocolError,
    decode_preface,
    encode_preface,
)
from raft_meta.consensus.messages import decode_message, encode_message
from tests.fuzz.targets.target import KEY, Target
from tests.support.clusters.raft_bench import entries


def _frames(data: bytes) -> object:
    """In two cuts; what comes out is read as both channels would."""
    decoder = FrameDecoder(KEY, header_bytes_max=1 << 16, body_bytes_max=1 << 16)
    found = decoder.feed(data[: len(data) // 2]) + decoder.feed(data[len(data) // 2 :])
    return [(_raft_or_data(header), body) for header, body in found]


def _raft_or_data(header: bytes) -> object:
    try:
        return decode_message(header)
    except PeerProtocolError:
        return decode_header(header)


def _frame_seeds() -> list[bytes]:
    encoder = FrameEncoder(KEY)
    message = encode_message({"type": "response_vote", "term": 4})
    return [b"".join(encoder.encode(message, [b"body"]) + encoder.encode(message))]


def _preface(data: bytes) -> object:
    return decode_preface(data)


def _handshake(data: bytes) -> object:
    """The first byte says which end; the rest is what the peer sends."""
    role = HandshakeRole.DIALER if data[:1] == b"\1" else HandshakeRole.ACCEPTOR
    mine = PeerIdentity(node_id=1, cluster_id="c", is_voter=True, voters=(1, 2))
    handshake = Handshake(role, mine, b"secret", channel=Channel.DATA, nonce=b"n" * 16)
    for at in range(1, len(data), 50):
        handshake.receive(data[at : at + 50])
        handshake.outgoing()
    return handshake.finish() if handshake.is_complete else handshake.peer


def _handshake_seeds() -> list[bytes]:
    found = []
    ends = (HandshakeRole.DIALER, HandshakeRole.ACCEPTOR)
    for role in ends:
        mine = PeerIdentity(node_id=1, cluster_id="c", is_voter=True, voters=(1, 2))
        theirs = PeerIdentity(node_id=2, cluster_id="c", is_voter=True, voters=(1, 2))
        other = ends[1] if role is ends[0] else ends[0]
        ours = Handshake(role, mine, b"secret", channel=Channel.DATA, nonce=b"n" * 16)
        peer = Handshake(other, theirs, b"secret", channel=Channel.DATA, nonce=b"m" * 16)
        sent = b""
        for _ in range(3):
            peer.receive(ours.outgoing())
            piece = peer.outgoing()
            sent += piece
            ours.receive(piece)
        found.append((b"\1" if role is HandshakeRole.DIALER else b"\0") + sent)
    return found


def _peer_header(data: bytes) -> object:
    parts = decode_header(data)
    return decode_error(parts[-3:][0], parts[-2:][0], parts[-1])


def _peer_header_seeds() -> list[bytes]:
    return [
        msgpack.packb([1, 7, "fetch", {"a": 1, "b": {"c": [None, True, b"x", "y"]}}]),
        msgpack.packb([3, 7, "not_leader", "elsewhere", 3]),
        msgpack.packb([0, "rpc"]),
    ]


def _raft_message(data: bytes) -> object:
    message = decode_message(data)
    assert decode_message(encode_message(message)) == message
    return message


def _raft_message_seeds() -> list[bytes]:
    chunk = (b"data", True, False, (1, 2), 0)
    return [
        encode_message(message)
        for message in (
            {"type": "request_vote", "term": 1, "last_log_index": 2, "last_log_term": 1},
            {
                "type": "append_entries",
                "term": 1,
                "commit_index": 2,
                "prevLogIdx": 1,
                "prevLogTerm": None,
                "entries": entries(2, 4),
            },
            {"type": "append_entries", "term": 1, "commit_index": 2, "serialized": chunk},
            {"type": "apply_command", "command": b"\0x", "request_id": 3},
        )
    ]


def _fetch(data: bytes) -> object:
    fields = decode_header(data)[-1]
    if not isinstance(fields, dict):
        raise MalformedRequestError("this is no fetch")
    body_bytes = fields.get("bytes", 0)
    return (
        parse_positions(fields.get("p")),
        parse_log_starts(fields.get("ls")),
        parse_rows(fields.get("r"), body_bytes if type(body_bytes) is int else 0),
    )


def _fetch_seeds() -> list[bytes]:
    fields = {
        "p": [[0, "topic", 3, 1, 500, 1], [1, "topic", 4, 1, 0, -1]],
        "ls": [[0, 3]],
        "r": [[0, 0, 9, 0, 10, -1, -1], [1, 2, 9, 0, 5, 7, -1]],
        "bytes": 15,
    }
    return [msgpack.packb([1, 1, "fetch", fields])]


PEERS: tuple[Target, ...] = (
    Target("frames", _frames, (PeerProtocolError, MilenaError), _frame_seeds),
    Target(
        "preface",
        _preface,
        (PeerProtocolError,),
        lambda: [encode_preface(channel) for channel in Channel],
    ),
    Target("handshake", _handshake, (PeerProtocolError,), _handshake_seeds),
    Target("peer-header", _peer_header, (MilenaError,), _peer_header_seeds),
    Target("raft-message", _raft_message, (PeerProtocolError,), _raft_message_seeds),
    Target("fetch", _fetch, (MilenaError,), _fetch_seeds),
)
