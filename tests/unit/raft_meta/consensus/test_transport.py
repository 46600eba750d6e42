"""Sessions of the Raft channel, against a peer that is written by hand on the other end of a socket pair."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator

import pytest

from raft_meta.consensus.frames import (
    ID_IN_USE,
    Channel,
    Handshake,
    HandshakeRole,
    PeerIdentity,
    PeerRefusedError,
    Session,
)
from raft_meta.consensus.messages import Message, decode_message, encode_message
from raft_meta.consensus.transport import (
    FRAME_SECONDS_MAX,
    OPENING_MAX,
    SILENCE_SECONDS,
    Transport,
    TransportConfig,
)
from tests.support.time.virtual_time import virtual

VOTERS = {1: ("127.0.0.1", 1), 2: ("127.0.0.1", 2), 3: ("127.0.0.1", 3)}
MESSAGE: Message = {"type": "response_vote", "term": 5}


class Events:
    """Remembers what the transport tells, and wakes who waits for it."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []
        self._changed = asyncio.Event()

    def _note(self, *event: object) -> None:
        self.seen.append(event)
        self._changed.set()

    def on_connected(self, peer: PeerIdentity) -> None:
        self._note("connected", peer.node_id)

    def on_disconnected(self, node_id: int) -> None:
        self._note("disconnected", node_id)

    def on_message(self, node_id: int, message: Message) -> None:
        self._note("message", node_id, message)

    def on_read(self) -> None:
        self._note("read")

    def on_refused(self, error: PeerRefusedError) -> None:
        self._note("refused", str(error))

    async def wait_for(self, *event: object) -> None:
        while event not in self.seen:
            self._changed.clear()
            await self._changed.wait()


def identity(node_id: int, **changes: object) -> PeerIdentity:
    fields = {
        "node_id": node_id,
        "cluster_id": "c",
        "is_voter": node_id in VOTERS,
        "voters": tuple(VOTERS),
    }
    return PeerIdentity(**{**fields, **changes})  # type: ignore[arg-type]  # fields of an identity


class Peer:
    """The other end of a connection that the transport accepted."""

    def __init__(self, transport: Transport, me: PeerIdentity) -> None:
        ours, theirs = socket.socketpair()
        self._ours = ours
        self._me = me
        transport.accept(theirs)
        self.session: Session | None = None

    async def connect(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(sock=self._ours)
        handshake = Handshake(
            HandshakeRole.DIALER, self._me, b"s", channel=Channel.RAFT, expected_node_id=1
        )
        while not handshake.is_complete:
            self.writer.write(handshake.outgoing())
            handshake.receive(await self.reader.read(4096))
        self.session = handshake.finish()
        self.leftover = self.session.leftover

    def send(self, *messages: Message) -> None:
        assert self.session is not None
        for message in messages:
            self.writer.writelines(self.session.encoder.encode(encode_message(message)))

    async def receive(self) -> Message:
        assert self.session is not None
        frames = self.session.decoder.feed(self.leftover)
        self.leftover = b""
        while not frames:
            data = await self.reader.read(4096)
            assert data, "the transport hung up"
            frames = self.session.decoder.feed(data)
        return decode_message(frames[0][0])

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@pytest.fixture
async def events() -> Events:
    return Events()


def transport_of(events: Events) -> Transport:
    config = TransportConfig(
        voters=VOTERS, secret=b"s", identity=lambda: identity(1), ssl_server=None, ssl_client=None
    )
    return Transport(config, events, random.Random(1))


@pytest.fixture
async def transport(events: Events) -> AsyncIterator[Transport]:
    made = transport_of(events)
    yield made
    await made.close()


async def connected(transport: Transport, events: Events, me: PeerIdentity) -> Peer:
    peer = Peer(transport, me)
    await peer.connect()
    await events.wait_for("connected", me.node_id)
    return peer


async def test_messages_pass_both_ways(transport: Transport, events: Events) -> None:
    peer = await connected(transport, events, identity(2))
    peer.send(MESSAGE)
    await events.wait_for("message", 2, MESSAGE)
    transport.send(2, {"type": "timeout_now", "term": 9})
    assert await peer.receive() == {"type": "timeout_now", "term": 9}
    assert transport.connected_ids() == [2]
    assert transport.last_contact_ms(2) is not None
    assert transport.last_contact_ms(3) is None
    await peer.close()


async def test_a_closed_connection_is_noticed(transport: Transport, events: Events) -> None:
    peer = await connected(transport, events, identity(2))
    await peer.close()
    await events.wait_for("disconnected", 2)
    assert transport.connected_ids() == []
    transport.send(2, MESSAGE)


async def test_a_newer_connection_replaces_the_older_and_silences_it(
    transport: Transport, events: Events
) -> None:
    older = await connected(transport, events, identity(2))
    left_over = transport._live[2]
    events.seen.clear()
    newer = await connected(transport, events, identity(2))
    assert events.seen[:2] == [("disconnected", 2), ("connected", 2)]
    assert older.session is not None
    frame = b"".join(older.session.encoder.encode(encode_message(MESSAGE)))  # type: ignore[arg-type]  # bytes
    left_over.data_received(frame)
    newer.send({"type": "response_vote", "term": 6})
    await events.wait_for("message", 2, {"type": "response_vote", "term": 6})
    assert ("message", 2, MESSAGE) not in events.seen
    assert transport.connected_ids() == [2]
    await newer.close()
    await events.wait_for("disconnected", 2)
    await older.close()


async def refused(transport: Transport, me: PeerIdentity) -> None:
    """Connect as a process that is refused because another one is connected."""
    twin = Peer(transport, me)
    await twin.connect()
    assert await twin.receive() == {"type": "bootstrap", "state": ID_IN_USE}
    await twin.close()


async def test_a_second_live_process_of_an_id_is_refused_and_told_why(
    transport: Transport, events: Events
) -> None:
    """A configuration that was copied must not take a healthy node out, on a busy and on an idle connection."""
    healthy = await connected(transport, events, identity(2, incarnation=7))
    for term in range(3):
        await refused(transport, identity(2, incarnation=8))
        message: Message = {"type": "response_vote", "term": term}
        healthy.send(message)
        await events.wait_for("message", 2, message)
    assert ("disconnected", 2) not in events.seen
    (complaint,) = [event for event in events.seen if event[0] == "refused"]
    assert "two live processes have node_id 2" in str(complaint[1])
    await healthy.close()


async def test_a_process_replaces_its_own_connection(transport: Transport, events: Events) -> None:
    peers = []
    for incarnation in (7, 7, 0, 8):
        events.seen.clear()
        peers.append(await connected(transport, events, identity(2, incarnation=incarnation)))
    for peer in peers:
        await peer.close()


@virtual
async def test_a_process_that_no_longer_responds_is_replaced() -> None:
    events = Events()
    transport = transport_of(events)
    older = await connected(transport, events, identity(2, incarnation=7))
    transport.send(2, {"type": "timeout_now", "term": 9})
    await asyncio.sleep(SILENCE_SECONDS - 0.5)
    await refused(transport, identity(2, incarnation=8))
    await asyncio.sleep(1)
    events.seen.clear()
    newer = await connected(transport, events, identity(2, incarnation=8))
    assert events.seen == [("disconnected", 2), ("connected", 2)]
    for peer in (older, newer):
        await peer.close()
    await transport.close()


async def test_an_observer_may_connect(transport: Transport, events: Events) -> None:
    peer = await connected(transport, events, identity(9))
    await peer.close()


@pytest.mark.parametrize(
    ("me", "sentence"),
    [
        (identity(2, cluster_id="other"), "cluster 'other'"),
        (identity(2, voters=(1, 2, 4)), "started with voters [1, 2, 4]"),
        (identity(4, is_voter=True), "node 4 was started"),
        (identity(2, is_voter=False), "node 2 was started"),
        (identity(1), "own id 1"),
    ],
)
async def test_a_peer_that_does_not_belong_is_refused_and_named(
    transport: Transport, events: Events, me: PeerIdentity, sentence: str
) -> None:
    peer = Peer(transport, me)
    try:
        await peer.connect()
    except PeerRefusedError:
        assert peer.session is None
    while not events.seen:
        assert await peer.reader.read(100) is not None
        await asyncio.sleep(0)
    assert events.seen[0][0] == "refused"
    assert sentence in str(events.seen[0][1])
    assert transport.connected_ids() == []
    await peer.close()


async def test_a_malformed_message_ends_the_session(transport: Transport, events: Events) -> None:
    peer = await connected(transport, events, identity(2))
    assert peer.session is not None
    peer.writer.writelines(peer.session.encoder.encode(b"\x91\x63"))
    await events.wait_for("disconnected", 2)
    assert await peer.reader.read(100) == b""
    await peer.close()


async def test_the_end_of_a_read_is_told_once(transport: Transport, events: Events) -> None:
    peer = await connected(transport, events, identity(2))
    events.seen.clear()
    peer.writer.write(cut(peer) + cut(peer))
    await events.wait_for("read")
    assert events.seen == [("message", 2, MESSAGE), ("message", 2, MESSAGE), ("read",)]
    await peer.close()


async def test_what_came_before_a_malformed_message_is_seen_to(
    transport: Transport, events: Events
) -> None:
    peer = await connected(transport, events, identity(2))
    assert peer.session is not None
    events.seen.clear()
    peer.writer.writelines([cut(peer), *peer.session.encoder.encode(b"\x91\x63")])
    await events.wait_for("disconnected", 2)
    assert events.seen == [("message", 2, MESSAGE), ("read",), ("disconnected", 2)]
    await peer.close()


def cut(peer: Peer) -> bytes:
    """A whole frame."""
    assert peer.session is not None
    return b"".join(map(bytes, peer.session.encoder.encode(encode_message(MESSAGE))))


@virtual
async def test_a_frame_whose_length_was_damaged_does_not_keep_a_session_for_ever() -> None:
    events = Events()
    transport = transport_of(events)
    peer = await connected(transport, events, identity(2))
    frame = bytearray(cut(peer))
    frame[1] ^= 0x20
    peer.writer.write(frame)
    for _ in range(int(FRAME_SECONDS_MAX)):
        # Heartbeats go on, and go into it.
        peer.writer.write(cut(peer))
        await asyncio.sleep(1)
    await events.wait_for("disconnected", 2)
    assert await peer.reader.read(100) == b""
    await peer.close()
    await transport.close()


@virtual
async def test_a_frame_that_comes_slowly_has_its_time_and_so_has_the_next() -> None:
    events = Events()
    transport = transport_of(events)
    peer = await connected(transport, events, identity(2))
    first, second = cut(peer), cut(peer)
    for piece in (first[:10], first[10:] + second[:10], second[10:]):
        peer.writer.write(piece)
        await asyncio.sleep(0.9 * FRAME_SECONDS_MAX)
    assert events.seen.count(("message", 2, MESSAGE)) == 2
    await asyncio.sleep(2 * FRAME_SECONDS_MAX)
    assert transport.connected_ids() == [2]
    await peer.close()
    await transport.close()


async def test_a_stranger_is_closed_without_an_event(transport: Transport, events: Events) -> None:
    ours, theirs = socket.socketpair()
    transport.accept(theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    writer.write(b"\x00\x05hello")
    assert await reader.read(100) == b""
    assert events.seen == []
    writer.close()
    await writer.wait_closed()


async def test_unfinished_handshakes_are_bounded(transport: Transport) -> None:
    pairs = [socket.socketpair() for _ in range(OPENING_MAX + 1)]
    for _, theirs in pairs[:-1]:
        transport.accept(theirs)
    for _ in range(3):
        await asyncio.sleep(0)
    transport.accept(pairs[-1][1])
    assert pairs[-1][0].recv(1) == b""
    await transport.close()
    for ours, _ in pairs:
        ours.close()


async def test_a_closed_transport_takes_no_more(transport: Transport) -> None:
    await transport.close()
    ours, theirs = socket.socketpair()
    transport.accept(theirs)
    assert ours.recv(1) == b""
    ours.close()
