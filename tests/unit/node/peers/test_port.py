"""Calls between nodes over real loopback sockets, on free ports."""

import asyncio
import contextlib
import logging
import struct
from typing import TYPE_CHECKING

import pytest
import uvloop

from milena.model.contained import ContainedErrors, EntryPoint
from milena.model.errors import (
    FateUnknownError,
    InternalError,
    InvalidRequestError,
    MalformedRequestError,
    MilenaError,
    NotLeaderError,
    StaleLeaderEpochError,
    StartupError,
    UnavailableError,
)
from node.peers import codec as peer_codec
from node.peers import link as peer_link
from node.peers.codec import Fields
from node.peers.port import (
    PeerChannel,
    PeerClient,
    PeerListener,
    PeerLostError,
    PeerServer,
    PeerUnreachableError,
    ProbeResult,
    probe,
)
from node.peers.watch import RHYTHMS
from raft_meta.consensus import frames
from raft_meta.consensus.frames import PeerIdentity

if TYPE_CHECKING:
    import socket

SECRET = b"a secret that two nodes share"
SECONDS = 5_000


def identity(node_id: int, cluster_id: str = "c1") -> PeerIdentity:
    return PeerIdentity(node_id=node_id, cluster_id=cluster_id, is_voter=True)


class Pair:
    """Node 1, which listens, and node 2, which dials it."""

    def __init__(self, server_secret: bytes = SECRET, cluster_id: str = "c1", node_id: int = 1):
        self.lost_inbound: list[tuple[int, PeerChannel]] = []
        self.lost_outbound: list[tuple[int, PeerChannel]] = []
        self.raft: list[socket.socket] = []
        self.outbound_gone = asyncio.Event()
        self.inbound_gone = asyncio.Event()
        self.contained = ContainedErrors()
        self.server = PeerServer(on_disconnected=self._inbound, contained=self.contained)
        self.listener = PeerListener(
            server=self.server,
            identity=lambda: identity(node_id, cluster_id),
            secret=server_secret,
            on_raft_socket=self.raft.append,
        )
        self.address: tuple[str, int] | None = None
        self.client = PeerClient(
            identity=lambda: identity(2),
            secret=SECRET,
            resolve=lambda node: self.address,
            on_disconnected=self._outbound,
        )

    def _inbound(self, node_id: int, channel: PeerChannel) -> None:
        self.lost_inbound.append((node_id, channel))
        self.inbound_gone.set()

    def _outbound(self, node_id: int, channel: PeerChannel) -> None:
        self.lost_outbound.append((node_id, channel))
        self.outbound_gone.set()

    async def __aenter__(self) -> "Pair":
        await self.listener.start("127.0.0.1", 0)
        self.address = ("127.0.0.1", self.listener.port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.close()
        await self.listener.stop()
        for connection in self.raft:
            connection.close()

    async def call(self, request_type: str, fields: Fields | None = None, body=(), **options):
        options.setdefault("timeout_ms", SECONDS)
        return await self.client.call(1, request_type, fields or {}, body, **options)


def echo(peer_id: int, fields: Fields, body: bytes):
    return {**fields, "from": peer_id}, [body]


async def test_a_call_carries_fields_and_body_both_ways():
    async with Pair() as pair:
        pair.server.register("echo", echo)
        fields, body = await pair.call(
            "echo", {"a": [1, "x", b"\xff", None]}, [b"ab", memoryview(b"cd")]
        )
        assert fields == {"a": [1, "x", b"\xff", None], "from": 2}
        assert body == b"abcd"


async def test_a_node_that_joins_logs_the_id_of_the_node_that_it_found(caplog):
    async with Pair() as pair:
        pair.server.register("echo", echo)
        joining = PeerClient(
            identity=lambda: identity(2),
            secret=SECRET,
            resolve=lambda _: pair.address,
            is_anyone=True,
        )
        with caplog.at_level(logging.INFO, logger="milena.peer"):
            there, pair.address = pair.address, ("127.0.0.1", 1)
            with pytest.raises(PeerUnreachableError):
                await joining.call(0, "echo", {}, [], timeout_ms=SECONDS)
            pair.address = there
            await joining.call(0, "echo", {}, [], timeout_ms=SECONDS)
            await joining.close()
        told = [record.getMessage() for record in caplog.records]
        assert any(line.startswith("peer reached node_id=1 ") for line in told)
        assert not any("node_id=0" in line for line in told)


async def test_large_bodies_arrive_whole():
    async with Pair() as pair:
        pair.server.register("echo", echo)
        sent = bytes(range(256)) * 40_000
        _, body = await pair.call("echo", {}, [sent[:5], sent[5:]])
        assert body == sent


async def test_a_handler_may_be_a_function_a_coroutine_or_return_a_future():
    async with Pair() as pair:
        later: asyncio.Future[peer_link.Reply] = asyncio.get_running_loop().create_future()

        async def coroutine(peer_id: int, fields: Fields, body: bytes):
            await asyncio.sleep(0)
            return {"by": "coroutine"}, ()

        pair.server.register("function", lambda *_: ({"by": "function"}, ()))
        pair.server.register("coroutine", coroutine)
        pair.server.register("future", lambda *_: later)
        asyncio.get_running_loop().call_soon(later.set_result, ({"by": "future"}, ()))
        for name in ("function", "coroutine", "future"):
            assert await pair.call(name) == ({"by": name}, b"")


async def test_answers_come_in_any_order_on_one_link():
    async with Pair() as pair:
        gates = {number: asyncio.Event() for number in range(3)}

        async def wait(peer_id: int, fields: Fields, body: bytes):
            number = fields["n"]
            await gates[number].wait()
            return {"n": number}, ()

        pair.server.register("wait", wait)
        pair.server.register("echo", echo)
        calls = [asyncio.ensure_future(pair.call("wait", {"n": number})) for number in range(3)]
        await pair.call("echo")
        for number in (2, 0, 1):
            gates[number].set()
            assert (await calls[number])[0] == {"n": number}
        assert len(pair.server._links) == 1


async def test_each_channel_has_a_link_of_its_own():
    async with Pair() as pair:
        pair.server.register("echo", echo)
        for channel in PeerChannel:
            await pair.call("echo", channel=channel)
            assert pair.server.connected(channel) == {2}
            assert pair.client.is_connected(1, channel)
        assert len(pair.server._links) == len(PeerChannel)


@pytest.mark.parametrize(
    "error",
    [
        StaleLeaderEpochError("epoch 3, not 2"),
        InvalidRequestError("no"),
        UnavailableError("later"),
        NotLeaderError("ask another", leader=3),
        NotLeaderError("ask somebody"),
    ],
)
async def test_an_error_of_a_handler_is_raised_at_the_caller_as_the_same_class(error: MilenaError):
    async with Pair() as pair:

        async def refuse(peer_id: int, fields: Fields, body: bytes):
            raise error

        def refuse_at_once(peer_id: int, fields: Fields, body: bytes):
            raise error

        pair.server.register("refuse", refuse)
        pair.server.register("refuse_at_once", refuse_at_once)
        for name in ("refuse", "refuse_at_once"):
            with pytest.raises(type(error)) as caught:
                await pair.call(name)
            assert type(caught.value) is type(error)
            assert caught.value.message == error.message
            assert getattr(caught.value, "leader", None) == getattr(error, "leader", None)


async def test_a_broken_handler_gets_a_typed_refusal_and_the_link_stays(caplog):
    async with Pair() as pair:

        async def broken(peer_id: int, fields: Fields, body: bytes):
            raise AssertionError("high watermark fell")

        pair.server.register("broken", broken)
        pair.server.register("unpackable", lambda *_: ({"x": object()}, ()))
        pair.server.register("too large", lambda *_: ({"x": 1 << 64}, ()))
        pair.server.register("no reply", lambda *_: None)
        pair.server.register("short", lambda *_: ({},))
        pair.server.register("echo", echo)
        names = ("broken", "unpackable", "too large", "no reply", "short")
        for name in (*names, *names):
            with pytest.raises(InternalError, match="request_id=2-rpc-"):
                await pair.call(name)
        await pair.call("echo")
        assert pair.lost_inbound == []
        assert pair.contained.counts[EntryPoint.PEER] == 2 * len(names)
        assert caplog.text.count("unexpected error request_id") == len(names)


async def test_an_unknown_request_is_refused_and_the_link_stays():
    async with Pair() as pair:
        pair.server.register("echo", echo)
        with pytest.raises(InvalidRequestError, match="no request 'what'"):
            await pair.call("what")
        await pair.call("echo")
        assert pair.lost_inbound == []


async def test_a_refused_connection_means_that_nothing_was_sent():
    async with Pair() as pair:
        await pair.listener.stop()
        with pytest.raises(PeerUnreachableError):
            await pair.call("echo")
        assert pair.lost_outbound == []


async def test_a_node_of_unknown_address_is_unreachable():
    async with Pair() as pair:
        pair.address = None
        with pytest.raises(PeerUnreachableError, match="address is not known"):
            await pair.call("echo")


async def test_a_link_lost_after_sending_leaves_the_fate_unknown_and_both_ends_hear_of_it():
    async with Pair() as pair:
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def park(peer_id: int, fields: Fields, body: bytes):
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return {}, ()

        pair.server.register("park", park)
        call = asyncio.ensure_future(pair.call("park", channel=PeerChannel.FETCH))
        await started.wait()
        next(iter(pair.server._links)).abort("pulled out")
        with pytest.raises(PeerLostError):
            await call
        await pair.outbound_gone.wait()
        await pair.inbound_gone.wait()
        await cancelled.wait()
        assert pair.lost_outbound == [(1, PeerChannel.FETCH)]
        assert pair.lost_inbound == [(2, PeerChannel.FETCH)]
        assert not pair.client.is_connected(1, PeerChannel.FETCH)


async def test_the_next_call_after_a_loss_dials_again():
    async with Pair() as pair:
        pair.server.register("echo", echo)
        await pair.call("echo")
        next(iter(pair.server._links)).abort("pulled out")
        await pair.outbound_gone.wait()
        await pair.call("echo")


async def test_a_call_whose_time_is_up_leaves_the_fate_unknown_and_the_late_answer_is_dropped():
    async with Pair() as pair:
        later: asyncio.Future[peer_link.Reply] = asyncio.get_running_loop().create_future()
        pair.server.register("park", lambda *_: later)
        pair.server.register("echo", echo)
        await pair.client.connect(1, timeout_ms=SECONDS)
        with pytest.raises(PeerLostError, match="did not answer 'park' within 1 ms"):
            await pair.call("park", timeout_ms=1)
        later.set_result(({}, ()))
        await pair.call("echo")
        assert pair.client.is_connected(1)


async def test_a_cancelled_call_leaves_nothing_behind():
    async with Pair() as pair:
        started = asyncio.Event()

        async def park(peer_id: int, fields: Fields, body: bytes):
            started.set()
            await asyncio.Event().wait()
            return {}, ()

        pair.server.register("park", park)
        call = asyncio.ensure_future(pair.call("park"))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        (link,) = pair.client._links.values()
        assert link._answers == {}


async def test_another_secret_is_refused():
    async with Pair(server_secret=b"quite another secret") as pair:
        with pytest.raises(PeerUnreachableError):
            await pair.call("echo")


async def test_a_foreign_cluster_is_refused_and_named(caplog: pytest.LogCaptureFixture):
    async with Pair(cluster_id="other") as pair:
        with pytest.raises(PeerUnreachableError, match="cluster 'other'"):
            await pair.call("echo")
        await pair.listener.stop()
    assert "c1" in caplog.text


async def test_a_node_that_answers_under_another_id_is_refused():
    async with Pair(node_id=3) as pair:
        with pytest.raises(PeerUnreachableError, match="dialled node 1, but node 3"):
            await pair.call("echo")


async def test_a_peer_that_cannot_be_reached_is_named_once(caplog: pytest.LogCaptureFixture):
    async with Pair() as pair:
        await pair.listener.stop()
        for _ in range(3):
            with pytest.raises(PeerUnreachableError):
                await pair.call("echo")
    assert caplog.text.count("peer unreachable node_id=1 channel=rpc reason=127.0.0.1:") == 1


async def test_a_stranger_is_named_once_for_each_reason(caplog: pytest.LogCaptureFixture):
    async with Pair(server_secret=b"quite another secret") as pair:
        for _ in range(3):
            with pytest.raises(PeerUnreachableError):
                await pair.call("echo")
        await pair.listener.stop()
    assert caplog.text.count("another cluster secret") == 1


async def test_answers_that_are_queued_leave_before_a_stopping_node_hangs_up():
    async with Pair() as pair:
        body = bytes(8 << 20)
        answered = asyncio.Event()

        async def then(peer_id: int, fields: Fields, data: bytes):
            answered.set()
            return {}, [body]

        pair.server.register("then", then)
        call = asyncio.ensure_future(pair.call("then"))
        await answered.wait()
        await asyncio.sleep(0)
        await asyncio.gather(pair.listener.stop(), call)
        assert call.result() == ({}, body)


async def test_callers_share_one_dial():
    async with Pair() as pair:
        pair.server.register("echo", echo)
        await asyncio.gather(*(pair.call("echo") for _ in range(50)))
        assert len(pair.server._links) == 1


async def test_a_newer_link_replaces_the_one_before_without_a_report_of_loss():
    async with Pair() as pair:
        pair.server.register("echo", echo)
        await pair.call("echo")
        (first,) = pair.server._links
        again = PeerClient(
            identity=lambda: identity(2), secret=SECRET, resolve=lambda node: pair.address
        )
        await again.call(1, "echo", {}, timeout_ms=SECONDS)
        await first.closed
        assert pair.lost_inbound == []
        assert pair.server.connected(PeerChannel.RPC) == {2}
        await again.close()


async def test_raft_sockets_are_handed_over_with_nothing_but_the_preface_read():
    async with Pair() as pair:
        handed: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        pair.listener.on_raft_socket = handed.set_result
        _, writer = await asyncio.open_connection(*pair.address)
        writer.write(frames.encode_preface(frames.Channel.RAFT) + b"raft bytes")
        connection = await handed
        pair.raft.append(connection)
        data = await asyncio.get_running_loop().sock_recv(connection, 100)
        assert data == b"raft bytes"
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize("opening", [b"GET / HTTP/1.1\r\n\r\n", b"MLNA\x09D\0\0", b"MLNA\x01X\0\0"])
async def test_strangers_are_closed_by_their_preface(opening: bytes):
    async with Pair() as pair:
        reader, writer = await asyncio.open_connection(*pair.address)
        writer.write(opening)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_hostile_bytes_after_the_preface_close_the_connection():
    async with Pair() as pair:
        reader, writer = await asyncio.open_connection(*pair.address)
        writer.write(frames.encode_preface(frames.Channel.DATA) + struct.pack(">H", 9999))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        await pair.listener.stop()
        assert not pair.server._links


async def test_a_caller_waits_while_the_peer_does_not_read():
    async with Pair() as pair:
        pair.server.register("echo", echo)
        await pair.call("echo")
        (link,) = pair.client._links.values()
        link.pause_writing()
        call = asyncio.ensure_future(pair.call("echo"))
        with pytest.raises(PeerUnreachableError):
            await pair.call("echo", timeout_ms=1)
        assert not call.done()
        link.resume_writing()
        await call


async def test_too_many_calls_in_flight_are_refused_before_sending(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peer_link, "CALLS_IN_FLIGHT_MAX", 2)
    async with Pair() as pair:
        never: asyncio.Future[peer_link.Reply] = asyncio.get_running_loop().create_future()
        pair.server.register("park", lambda *_: asyncio.shield(never))
        await pair.client.connect(1, timeout_ms=SECONDS)
        calls = [asyncio.ensure_future(pair.call("park")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(PeerUnreachableError, match="wait for an answer"):
            await pair.call("park")
        await pair.client.close()
        for call in calls:
            with pytest.raises(PeerLostError):
                await call


async def test_a_listener_stops_reading_while_its_handlers_hold_too_much(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(peer_link, "BYTES_IN_FLIGHT_MAX", 1000)
    async with Pair() as pair:
        gate = asyncio.Event()
        held = asyncio.Event()

        async def hold(peer_id: int, fields: Fields, body: bytes):
            held.set()
            await gate.wait()
            return {}, ()

        pair.server.register("hold", hold)
        pair.server.register("echo", echo)
        first = asyncio.ensure_future(pair.call("hold", {}, [b"x" * 2000]))
        await held.wait()
        (link,) = pair.server._links
        assert not link._is_reading
        second = asyncio.ensure_future(pair.call("echo"))
        gate.set()
        await asyncio.gather(first, second)
        assert link._is_reading
        assert link._held_bytes == 0


SILENT = RHYTHMS[PeerChannel.RPC].silent_rounds
DOUBTFUL = SILENT // 2


def silent_round(link: peer_link.CallerLink) -> None:
    """A round of the watch passes without a byte."""
    link._silence._has_heard = False
    assert link._round is not None
    link._round.cancel()
    link._end_round()


async def parked(pair: Pair) -> tuple[peer_link.CallerLink, "asyncio.Future[object]"]:
    """A call that nobody answers, and its link."""
    pair.server.register("echo", echo)
    await pair.call("echo")
    (link,) = pair.client._links.values()
    never: asyncio.Future[peer_link.Reply] = asyncio.get_running_loop().create_future()
    pair.server.register("park", lambda *_: asyncio.shield(never))
    call = asyncio.ensure_future(pair.call("park"))
    await asyncio.sleep(0)
    return link, call


async def test_calls_to_a_silent_peer_fail_and_new_ones_are_not_sent(
    monkeypatch: pytest.MonkeyPatch,
):
    async with Pair() as pair:
        link, call = await parked(pair)
        sent: list[bytes] = []
        monkeypatch.setattr(link, "send", lambda header, body=(): sent.append(header))
        for _ in range(SILENT):
            assert not call.done()
            silent_round(link)
        with pytest.raises(PeerLostError, match="no sign of life"):
            await call
        assert sent == [peer_codec.encode_ping()] * SILENT
        assert link.is_open
        with pytest.raises(PeerUnreachableError, match="nothing was sent"):
            await pair.call("echo")


async def test_calls_to_a_doubtful_peer_are_held_back_until_it_speaks(
    monkeypatch: pytest.MonkeyPatch,
):
    async with Pair() as pair:
        link, parked_call = await parked(pair)
        sent: list[bytes] = []
        send = link.send
        monkeypatch.setattr(link, "send", lambda header, body=(): sent.append(header))
        for _ in range(DOUBTFUL):
            silent_round(link)
        held = asyncio.ensure_future(pair.call("echo"))
        await pair.call("echo", channel=PeerChannel.CONTROL)
        assert sent == [peer_codec.encode_ping()] * DOUBTFUL
        monkeypatch.setattr(link, "send", send)
        link.send(peer_codec.encode_ping())
        await held
        assert not parked_call.done()
        parked_call.cancel()


async def test_calls_held_back_for_a_peer_that_stays_silent_were_never_sent(
    monkeypatch: pytest.MonkeyPatch,
):
    async with Pair() as pair:
        link, call = await parked(pair)
        monkeypatch.setattr(link, "send", lambda header, body=(): None)
        for _ in range(DOUBTFUL):
            silent_round(link)
        held = asyncio.ensure_future(pair.call("echo"))
        await asyncio.sleep(0)
        for _ in range(SILENT - DOUBTFUL):
            assert not held.done()
            silent_round(link)
        with pytest.raises(PeerUnreachableError, match="nothing was sent"):
            await held
        with pytest.raises(PeerLostError):
            await call


async def test_a_peer_that_speaks_again_is_called_again():
    async with Pair() as pair:
        link, call = await parked(pair)
        for _ in range(SILENT):
            silent_round(link)
        with pytest.raises(PeerLostError):
            await call
        assert await pair.call("echo", channel=PeerChannel.CONTROL)
        link.data_received(b"")
        assert await pair.call("echo")


async def test_a_link_that_stays_silent_is_given_up():
    async with Pair() as pair:
        link, call = await parked(pair)
        for _ in range(RHYTHMS[PeerChannel.RPC].lost_rounds):
            assert link.is_open
            silent_round(link)
        assert not link.is_open
        assert "no sign of life" in link.failure
        with pytest.raises(PeerLostError):
            await call


UNFINISHED = struct.pack("!II", 20, 500_000) + bytes(16)
"""The beginning of a frame of half a megabyte."""


def round_with(link: peer_link.CallerLink, data: bytes) -> None:
    """A round of the watch in which these bytes come."""
    link.data_received(data)
    assert link._round is not None
    link._round.cancel()
    link._end_round()


async def test_a_frame_that_does_not_get_on_does_not_keep_a_link_alive():
    """Its length was damaged on the way: what goes into it from now on are pongs."""
    async with Pair() as pair:
        link, call = await parked(pair)
        round_with(link, UNFINISHED)
        for _ in range(SILENT):
            assert not link.is_silent
            round_with(link, bytes(60))
        with pytest.raises(PeerLostError, match="no sign of life"):
            await call


async def test_a_large_frame_keeps_a_link_alive_while_it_comes():
    async with Pair() as pair:
        link, call = await parked(pair)
        round_with(link, UNFINISHED)
        for _ in range(5 * SILENT):
            round_with(link, bytes(2_000))
        assert not link.is_silent
        assert not call.done()
        call.cancel()


async def test_a_ping_is_answered():
    async with Pair() as pair:
        pair.server.register("echo", echo)
        await pair.call("echo")
        (link,) = pair.client._links.values()
        link._silence._has_heard = False
        link.send(peer_codec.encode_ping())
        await pair.call("echo")
        assert link._silence._has_heard
        assert link.is_open


async def test_disconnect_drops_every_link_of_a_node_without_a_report():
    async with Pair() as pair:
        pair.server.register("echo", echo)
        await pair.call("echo")
        await pair.call("echo", channel=PeerChannel.CONTROL)
        pair.client.disconnect(1, PeerChannel.CONTROL)
        assert pair.client.is_connected(1)
        assert not pair.client.is_connected(1, PeerChannel.CONTROL)
        pair.client.disconnect(1)
        assert not pair.client.is_connected(1)
        await pair.call("echo")
        assert pair.lost_outbound == []


async def test_probe_tells_a_listening_process_from_one_that_is_gone():
    async with Pair() as pair:
        address = pair.address
        assert await probe(address, timeout_ms=SECONDS) is ProbeResult.CONNECTED
        assert await pair.client.probe(1, timeout_ms=SECONDS) is ProbeResult.CONNECTED
        await pair.listener.stop()
        assert await pair.client.probe(1, timeout_ms=SECONDS) is ProbeResult.REFUSED
        pair.address = None
        assert await pair.client.probe(1, timeout_ms=SECONDS) is ProbeResult.UNREACHABLE
        assert await probe(address, timeout_ms=SECONDS) is ProbeResult.REFUSED


async def test_probe_knows_nothing_of_a_name_that_does_not_exist():
    result = await probe(("no-such-host.invalid", 1), timeout_ms=SECONDS)
    assert result is ProbeResult.UNREACHABLE


async def test_an_address_in_use_is_refused_by_name():
    async with Pair() as pair:
        other = Pair()
        with pytest.raises(StartupError, match=f"127.0.0.1:{pair.listener.port}"):
            await other.listener.start("127.0.0.1", pair.listener.port)


@pytest.mark.parametrize(
    "header", [b"", b"\xc1", b"\x81\x01\x02", b"\x90", b"\x91\x63", b"\x91\xc3"]
)
def test_a_frame_header_must_be_an_array_that_begins_with_a_kind(header: bytes):
    with pytest.raises(MalformedRequestError):
        peer_codec.decode_header(header)


def test_an_unknown_error_code_leaves_the_fate_unknown():
    error = peer_codec.decode_error("from_the_future", "text", None)
    assert type(error) is FateUnknownError
    assert "from_the_future" in error.message


def test_an_error_defined_elsewhere_travels_as_the_one_that_it_extends():
    parts = peer_codec.decode_header(peer_codec.encode_refusal(7, PeerUnreachableError("gone")))
    assert type(peer_codec.decode_error(*parts[2:])) is UnavailableError


@pytest.mark.parametrize(
    "scenario",
    [
        test_large_bodies_arrive_whole,
        test_a_refused_connection_means_that_nothing_was_sent,
        test_a_link_lost_after_sending_leaves_the_fate_unknown_and_both_ends_hear_of_it,
        test_raft_sockets_are_handed_over_with_nothing_but_the_preface_read,
        test_hostile_bytes_after_the_preface_close_the_connection,
        test_a_call_whose_time_is_up_leaves_the_fate_unknown_and_the_late_answer_is_dropped,
        test_probe_tells_a_listening_process_from_one_that_is_gone,
        test_an_address_in_use_is_refused_by_name,
    ],
)
def test_the_same_holds_on_the_loop_that_a_node_runs_on(scenario):
    # Sockets that change hands and errors of connecting are where the two loops differ.
    uvloop.run(asyncio.wait_for(scenario(), 10))
