"""The bytes between two nodes: preface, mutual handshake, authenticated frames. This module does no I/O.

Both channels of the peer port use this protocol: Raft messages (``Channel.RAFT``) and the node's data channel
(``Channel.DATA``). The owner of a socket moves the bytes; this module reads neither a clock nor a socket.

Preface: 8 bytes in the clear. The dialer sends them once, before anything else (TLS included), so that the listener
knows the channel:

    offset  size  meaning
    0       4     b"MLNA"
    4       1     protocol version, 1
    5       1     channel: b"R" Raft, b"D" data
    6       2     zero

Handshake, each message framed by a u16 length (big-endian):

    dialer   → hello(dialer)
    acceptor → hello(acceptor)
    dialer   → proof(dialer)           HMAC-SHA256 over the whole transcript, keyed by the cluster secret
    acceptor → proof(acceptor)

A hello is msgpack: the sender's identity, the node that it wants, and a fresh nonce. The secret and both hellos give
one key per direction. So an attacker gains nothing from a recorded or reflected handshake, and cannot put another
identity under a valid proof. The dialer sends its proof first, so a dialer that does not know the secret gets nothing
computed from it. An empty secret is allowed, for loopback or under TLS. Identities are exchanged even so.

``finish`` checks the cluster ids and the wanted node, after both proofs. So an attacker without the secret cannot make
this node believe that a peer belongs to another cluster.

Frame, all integers big-endian:

    offset  size  meaning
    0       4     header_bytes
    4       4     body_bytes
    8       16    HMAC-SHA256, cut to 16, over: sequence number u64, header_bytes, body_bytes, header
    24      ..    header, then body

The sequence number counts the frames of one direction. It is not sent. If a frame is dropped, repeated or reordered,
the check of the next frame fails. The HMAC does not cover the body: record batches have their own CRC, and hashing them
again would cost more than sending them. A field that must not be forged belongs in the header.
"""

import hashlib
import hmac
import secrets
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum, unique
from typing import Annotated, Final

import msgspec

PREFACE_BYTES: Final = 8
PREFACE_MAGIC: Final = b"MLNA"
PROTOCOL_VERSION: Final = 1

FRAME_PREFIX_BYTES: Final = 24
MAC_BYTES: Final = 16

HEADER_BYTES_MAX: Final = 16 << 20
"""Default limit of a frame's header. It is three times a Raft append of 4 MiB plus one command of 1 MiB."""

BODY_BYTES_MAX: Final = 64 << 20
"""Default limit of a frame's body."""

_BLOCK_BYTES: Final = 64
"""Block size of SHA-256."""
_HELLO_BYTES_MAX: Final = 4096
_NONCE_BYTES: Final = 16
_ANY_NODE: Final = -1
_VOTERS_MAX: Final = 64
_LABEL: Final = b"milena peer 1"
_PREFIX: Final = struct.Struct(">II16s")
_COVERED: Final = struct.Struct(">QII")
_LENGTH: Final = struct.Struct(">H")
_HTTP: Final = b"HTTP/"
"""The first bytes of the response if a dialer has reached an HTTP server instead of a peer port."""


class PeerProtocolError(Exception):
    """The peer's bytes break the protocol, or its proof is wrong. The connection must be closed."""


class PeerRefusedError(PeerProtocolError):
    """The peer proved that it knows the secret, but is the wrong node. The message says what differs."""

    def __init__(self, message: str, peer: "PeerIdentity") -> None:
        super().__init__(message)
        self.peer = peer


@unique
class Channel(StrEnum):
    """The purpose of a connection."""

    RAFT = "R"
    DATA = "D"


@unique
class HandshakeRole(StrEnum):
    """The two ends of a connection."""

    DIALER = "dialer"
    ACCEPTOR = "acceptor"


@unique
class BootstrapState(IntEnum):
    """The state of a voter's directory; see ``bootstrap`` for the rules.

    ``NONE``: not a voter, or a channel that does not use the state.
    """

    NONE = 0
    EMPTY = 1
    FOUNDING = 2
    MEMBER = 3
    LEARNER = 4


ID_IN_USE: Final = 255
"""Sent in the place of a state before a session ends: another live process with the peer's node id is connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """The identity that one end of a connection claims. A proof shows that this end knows the secret.

    ``cluster_id`` is empty until it is known. ``voters``: the voter ids with which the node was started, sorted;
    empty if it does not know them.
    """

    node_id: int
    cluster_id: str
    is_voter: bool
    bootstrap: BootstrapState = BootstrapState.NONE
    incarnation: int = 0
    voters: tuple[int, ...] = ()


def encode_preface(channel: Channel) -> bytes:
    """Return the first 8 bytes that a dialer sends."""
    return PREFACE_MAGIC + bytes([PROTOCOL_VERSION]) + channel.value.encode() + b"\0\0"


def decode_preface(preface: bytes) -> Channel:
    """Return the channel that a dialer wants.

    Raises:
        PeerProtocolError: not a preface, or one of another protocol version.
    """
    if len(preface) != PREFACE_BYTES or preface[:4] != PREFACE_MAGIC or preface[6:] != b"\0\0":
        raise PeerProtocolError(f"not a peer of ours: preface {preface[:PREFACE_BYTES]!r}")
    if preface[4] != PROTOCOL_VERSION:
        raise PeerProtocolError(
            f"the peer speaks protocol version {preface[4]}, this node {PROTOCOL_VERSION}"
        )
    try:
        return Channel(chr(preface[5]))
    except ValueError:
        raise PeerProtocolError(f"unknown channel {preface[5:6]!r}") from None


class _FrameMac:
    """HMAC-SHA256 with one key, cut to ``MAC_BYTES``. The key is hashed once, not for every frame (RFC 2104)."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        assert len(key) <= _BLOCK_BYTES, "a longer key would have to be hashed first"
        block = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def digest(self, covered: bytes) -> bytes:
        inner = self._inner.copy()
        inner.update(covered)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()[:MAC_BYTES]


class FrameEncoder:
    """Encodes the frames of one direction of one connection."""

    __slots__ = ("_mac", "_sequence")

    def __init__(self, key: bytes) -> None:
        self._mac = _FrameMac(key)
        self._sequence = 0

    def encode(
        self, header: bytes, body: Iterable[bytes | bytearray | memoryview] = ()
    ) -> list[bytes | bytearray | memoryview]:
        """Return the chunks of one frame, to be written in order. The body's chunks are not copied."""
        chunks = list(body)
        body_bytes = sum(map(len, chunks))
        covered = _COVERED.pack(self._sequence, len(header), body_bytes) + header
        self._sequence += 1
        mac = self._mac.digest(covered)
        return [_PREFIX.pack(len(header), body_bytes, mac) + header, *chunks]


class FrameDecoder:
    """Decodes and checks the frames of one direction. The bytes may arrive in pieces of any size."""

    __slots__ = ("_body_max", "_buffer", "_header_max", "_mac", "_need", "_sequence")

    def __init__(
        self,
        key: bytes,
        *,
        header_bytes_max: int = HEADER_BYTES_MAX,
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        self._mac = _FrameMac(key)
        self._header_max = header_bytes_max
        self._body_max = body_bytes_max
        self._sequence = 0
        self._buffer = bytearray()
        self._need = FRAME_PREFIX_BYTES

    @property
    def is_between_frames(self) -> bool:
        """Whether the buffer is empty: no part of an unfinished frame has arrived."""
        return not self._buffer

    def feed(self, data: bytes | bytearray | memoryview) -> list[tuple[bytes, bytes]]:
        """Add bytes; return the frames that are now complete, as (header, body).

        Raises:
            PeerProtocolError: a length is above its limit, or a check failed; the connection must be closed.
        """
        if not self._buffer and type(data) is bytes and len(data) >= FRAME_PREFIX_BYTES:
            header_bytes, body_bytes, mac = _PREFIX.unpack_from(data)
            self._check_sizes(header_bytes, body_bytes)
            body_at = FRAME_PREFIX_BYTES + header_bytes
            if body_at + body_bytes == len(data):
                # Exactly one frame: the usual case on a quiet connection. It needs no buffer.
                header = data[FRAME_PREFIX_BYTES:body_at]
                self._check(header, body_bytes, mac)
                return [(header, data[body_at:])]
        self._buffer += data
        frames: list[tuple[bytes, bytes]] = []
        while len(self._buffer) >= self._need:
            frame = self._next()
            if frame is None:
                break
            frames.append(frame)
        return frames

    def _next(self) -> tuple[bytes, bytes] | None:
        header_bytes, body_bytes, mac = _PREFIX.unpack_from(self._buffer)
        self._check_sizes(header_bytes, body_bytes)
        body_at = FRAME_PREFIX_BYTES + header_bytes
        end = body_at + body_bytes
        if len(self._buffer) < end:
            self._need = end
            return None
        with memoryview(self._buffer) as view:
            header = bytes(view[FRAME_PREFIX_BYTES:body_at])
            body = bytes(view[body_at:end])
        self._check(header, body_bytes, mac)
        del self._buffer[:end]
        self._need = FRAME_PREFIX_BYTES
        return header, body

    def _check_sizes(self, header_bytes: int, body_bytes: int) -> None:
        if header_bytes > self._header_max or body_bytes > self._body_max:
            raise PeerProtocolError(f"frame of {header_bytes} + {body_bytes} bytes is too large")

    def _check(self, header: bytes, body_bytes: int, mac: bytes) -> None:
        covered = _COVERED.pack(self._sequence, len(header), body_bytes) + header
        if not hmac.compare_digest(self._mac.digest(covered), mac):
            raise PeerProtocolError("a frame failed its check")
        self._sequence += 1


@dataclass(frozen=True, slots=True)
class Session:
    """The result of a handshake. ``leftover``: bytes that arrived after it. The decoder must get them first."""

    peer: PeerIdentity
    encoder: FrameEncoder
    decoder: FrameDecoder
    leftover: bytes


class Handshake:
    """One end of one handshake.

    Its owner first sends ``outgoing()``. Until ``is_complete``, it passes arriving bytes to ``receive`` and sends
    ``outgoing()`` again. Then it sends ``outgoing()`` a last time and calls ``finish``.
    """

    def __init__(
        self,
        role: HandshakeRole,
        identity: PeerIdentity,
        secret: bytes,
        *,
        channel: Channel,
        expected_node_id: int | None = None,
        verifies_id: bool = False,
        nonce: bytes | None = None,
    ) -> None:
        self.verifies_id = verifies_id
        """Whether the peer's certificate must name the node id that the peer claims."""
        self.certified_ids: frozenset[int] = frozenset()
        """The node ids in the peer's certificate. The connection's owner sets them before the first ``receive``."""
        self._role = role
        self._identity = identity
        self._secret = secret
        self._channel = channel
        self._expected = expected_node_id
        self._own_hello = _encode_hello(
            identity, expected_node_id, nonce or secrets.token_bytes(_NONCE_BYTES)
        )
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._peer: PeerIdentity | None = None
        self._wanted = _ANY_NODE
        self._keys: dict[HandshakeRole, bytes] = {}
        self._complete = False
        if role is HandshakeRole.DIALER:
            self._send(self._own_hello)

    @property
    def is_complete(self) -> bool:
        """Whether this end has sent its proof and checked the peer's."""
        return self._complete

    @property
    def peer(self) -> PeerIdentity | None:
        """The identity that the other end claims; None before its hello. Trust it only once ``is_complete``."""
        return self._peer

    def outgoing(self) -> bytes:
        """Return and remove the bytes that must be sent now; may be empty."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    def receive(self, data: bytes) -> None:
        """Handle bytes from the peer. They may arrive in pieces of any size.

        Raises:
            PeerProtocolError: the bytes are malformed, the peer has another secret, or its certificate names another
                node.
        """
        self._incoming += data
        while not self._complete:
            message = self._take()
            if message is None:
                return
            if self._peer is None:
                self._on_hello(message)
            else:
                self._on_proof(message)

    def finish(
        self, *, header_bytes_max: int = HEADER_BYTES_MAX, body_bytes_max: int = BODY_BYTES_MAX
    ) -> Session:
        """Return the session of a complete handshake.

        Raises:
            PeerRefusedError: the peer belongs to another cluster, is or wanted another node, or has this node's id.
        """
        assert self._complete, "the handshake is not complete"
        assert self._peer is not None, "a complete handshake has a peer"
        self._refuse(self._peer)
        other = _other(self._role)
        return Session(
            peer=self._peer,
            encoder=FrameEncoder(_derive(self._keys[self._role], b"frames")),
            decoder=FrameDecoder(
                _derive(self._keys[other], b"frames"),
                header_bytes_max=header_bytes_max,
                body_bytes_max=body_bytes_max,
            ),
            leftover=bytes(self._incoming),
        )

    def _refuse(self, peer: PeerIdentity) -> None:
        mine = self._identity
        if mine.cluster_id and peer.cluster_id and mine.cluster_id != peer.cluster_id:
            raise PeerRefusedError(
                f"node {peer.node_id} belongs to cluster {peer.cluster_id!r}, "
                f"this node {mine.node_id} to cluster {mine.cluster_id!r}",
                peer,
            )
        if self._expected is not None and peer.node_id != self._expected:
            raise PeerRefusedError(
                f"dialled node {self._expected}, but node {peer.node_id} answered: check the "
                "addresses of the peers",
                peer,
            )
        if self._wanted not in {_ANY_NODE, mine.node_id}:
            raise PeerRefusedError(
                f"node {peer.node_id} dialled node {self._wanted}, but this is node "
                f"{mine.node_id}: check the addresses of the peers",
                peer,
            )
        if peer.node_id == mine.node_id:
            raise PeerRefusedError(
                f"the peer uses this node's own id {mine.node_id}: give each node another node_id",
                peer,
            )

    def _send(self, message: bytes) -> None:
        self._outgoing += _LENGTH.pack(len(message)) + message

    def _take(self) -> bytes | None:
        if len(self._incoming) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._incoming)
        if length > _HELLO_BYTES_MAX:
            if self._incoming.startswith(_HTTP):
                raise PeerProtocolError(
                    "an HTTP server responds there: give the peer port of a node"
                )
            raise PeerProtocolError(f"handshake message of {length} bytes is too large")
        end = _LENGTH.size + length
        if len(self._incoming) < end:
            return None
        message = bytes(self._incoming[_LENGTH.size : end])
        del self._incoming[:end]
        return message

    def _on_hello(self, hello: bytes) -> None:
        peer, wanted = _decode_hello(hello)
        if self.verifies_id and peer.node_id not in self.certified_ids:
            # Refuse before the peer's other fields are used, and before this node sends a proof.
            raise PeerProtocolError(_not_certified(peer.node_id, self.certified_ids))
        self._peer, self._wanted = peer, wanted
        is_dialer = self._role is HandshakeRole.DIALER
        first, second = (self._own_hello, hello) if is_dialer else (hello, self._own_hello)
        transcript = hashlib.sha256(
            _LABEL + self._channel.value.encode() + _LENGTH.pack(len(first)) + first + second
        ).digest()
        session_key = hmac.digest(self._secret, _LABEL + transcript, "sha256")
        self._keys = {role: _derive(session_key, role.value.encode()) for role in HandshakeRole}
        if is_dialer:
            self._send(_proof(self._keys[self._role]))
        else:
            self._send(self._own_hello)

    def _on_proof(self, proof: bytes) -> None:
        if not hmac.compare_digest(proof, _proof(self._keys[_other(self._role)])):
            assert self._peer is not None, "a proof follows a hello"
            raise PeerProtocolError(
                f"the peer that calls itself node {self._peer.node_id} has another cluster secret"
            )
        if self._role is HandshakeRole.ACCEPTOR:
            self._send(_proof(self._keys[self._role]))
        self._complete = True


def _not_certified(node_id: int, certified: frozenset[int]) -> str:
    named = ", ".join(map(str, sorted(certified))) or "none"
    return (
        f"the peer says that it is node {node_id}, and its certificate is for {named}: with peer_tls_verify_id it must "
        f"have the alternative name DNS:node-{node_id} or URI:milena:node:{node_id}"
    )


def _other(role: HandshakeRole) -> HandshakeRole:
    return HandshakeRole.ACCEPTOR if role is HandshakeRole.DIALER else HandshakeRole.DIALER


def _derive(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, purpose, "sha256")


def _proof(key: bytes) -> bytes:
    return _derive(key, b"proof")


_Hello = tuple[
    int,
    str,
    bool,
    BootstrapState,
    int,
    Annotated[tuple[int, ...], msgspec.Meta(max_length=_VOTERS_MAX)],
    int,
    Annotated[bytes, msgspec.Meta(min_length=_NONCE_BYTES, max_length=_NONCE_BYTES)],
]
"""The fields of a peer's identity, the node that it wants, and a nonce."""


def _encode_hello(identity: PeerIdentity, wanted: int | None, nonce: bytes) -> bytes:
    return msgspec.msgpack.encode(
        (
            identity.node_id,
            identity.cluster_id,
            identity.is_voter,
            identity.bootstrap,
            identity.incarnation,
            identity.voters,
            _ANY_NODE if wanted is None else wanted,
            nonce,
        )
    )


def _decode_hello(hello: bytes) -> tuple[PeerIdentity, int]:
    try:
        fields = msgspec.msgpack.decode(hello, type=_Hello)
    except ValueError as error:
        raise PeerProtocolError(f"malformed hello: {error}") from error
    node_id, cluster_id, is_voter, bootstrap, incarnation, voters, wanted, _ = fields
    identity = PeerIdentity(
        node_id=node_id,
        cluster_id=cluster_id,
        is_voter=is_voter,
        bootstrap=bootstrap,
        incarnation=incarnation,
        voters=voters,
    )
    return identity, wanted
