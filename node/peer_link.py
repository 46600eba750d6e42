"""One connection between two nodes: handshake, frames, back-pressure, and the two ends of a call.

The byte formats are ``raft_meta.consensus.frames`` (sans I/O) and ``node.peer_codec``; this is the asyncio shell.
``node.peer`` dials and accepts, and knows which nodes there are.

A link belongs to one loop and is driven by its transport alone. Protocol of a link:

1. The dialer has sent the preface, in the clear. Then, under TLS if there is any, both run the handshake.
2. The dialer sends a hello that names the channel. From here on only the dialer asks and only the listener answers.
3. Requests are multiplexed by id; answers come in any order. A caller that gave up drops the late answer.
4. A dialer that waits for an answer and hears nothing sends pings; after a few without any byte in return its calls
   fail, and after many it gives the link up. Silent rounds are counted, not measured: a stall of our own is one round.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias, cast

from node import peer_codec
from node.peer_codec import ANSWER, HELLO, PING, PONG, REFUSAL, REQUEST, Buffer, Channel, Fields
from raft_meta.consensus.frames import (
    BODY_BYTES_MAX,
    FrameDecoder,
    FrameEncoder,
    Handshake,
    PeerProtocolError,
    Session,
)
from storage.errors import (
    FateUnknownError,
    InvalidRequestError,
    MalformedRequestError,
    MilenaError,
    RequestTooLargeError,
    UnavailableError,
)

log = logging.getLogger("milena.peer")

Reply: TypeAlias = tuple[Fields, Sequence[Buffer]]
"""Fields and body of an answer. The chunks of the body are sent as they are, never joined."""

Handler: TypeAlias = Callable[[int, Fields, bytes], Reply | Awaitable[Reply]]
"""(peer's node id, fields, body) -> reply.

A plain function answers at once, without a task. One that returns a future is cheaper than a coroutine. Futures and
coroutines are cancelled when the link is lost: nobody is there to be answered.
"""

WRITE_BUFFER_BYTES_MAX = 4 << 20
"""Above this many unsent bytes a link counts as full: four answers of 1 MB on their way."""
HANDSHAKE_MS_MAX = 3_000
"""A handshake is two round trips; a peer that needs longer is stalled."""
PING_MS = {Channel.RPC: 200, Channel.FETCH: 1_000, Channel.CONTROL: 1_000}
SILENT_ROUNDS_MAX = 4
"""Rounds of PING_MS without a byte, while an answer is due, before a peer counts as silent: waiting calls fail, and new
ones are refused until a byte comes. Clients wait on calls, and may turn to another node within a second. A fetch is
silent by nature for as long as it may wait for records, and nobody waits for it."""
WATCHED_ROUNDS = 50
"""Rounds after its last call in which a link is still watched: who is called often is known to be silent before the
next call. A link that nobody uses costs nothing."""
LOST_ROUNDS_MAX = 20
"""Silent rounds before the link itself is given up."""
PATIENCE_ROUNDS_MAX = 12
"""A peer that spoke within twice the patience was only slow: from then on the link waits twice as long, up to this. A
longer silence was an outage, and teaches nothing."""
CALM_ROUNDS = 10
"""Rounds without a silence that take one round off a learnt patience."""
CALLS_IN_FLIGHT_MAX = 8_192
"""Per link; twice the requests that an API takes in flight."""
BYTES_IN_FLIGHT_MAX = 256 << 20
"""Bodies of requests that a listener's handlers hold, per link: four frames of the largest size."""


class PeerUnreachableError(UnavailableError):
    """The peer could not be asked: nothing was sent."""


class PeerLostError(FateUnknownError):
    """The request was sent, then the link broke or the answer did not come in time."""


class Link(asyncio.Protocol):
    """What both ends share.

    ``ready`` is done once the peer has proved who it is, or the link has failed before; see ``is_open``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, handshake: Handshake) -> None:
        self._loop = loop
        self._handshake = handshake
        self._encoder: FrameEncoder | None = None
        self._decoder: FrameDecoder | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._has_heard = False
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done once the connection is gone."""
        self.is_open = False
        """The handshake is done and the connection is up: frames may be sent."""
        self.is_full = False
        """The peer reads slower than this node writes."""
        self.peer_id = 0
        self.failure = ""
        """Why the link ended, for people; the first reason wins."""

    # What a transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake and its deadline."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        if self.failure:
            # Given up before it was made: ``closed`` is done already.
            self._transport.abort()
            return
        self._deadline = self._loop.call_later(
            HANDSHAKE_MS_MAX / 1000, self.abort, "the handshake took too long"
        )
        self._transport.write(self._handshake.outgoing())

    def data_received(self, data: bytes) -> None:
        """Feed whichever stage the link is in."""
        self._has_heard = True
        try:
            if self._decoder is None:
                data = self._shake_hands(data)
            if self._decoder is not None:
                for header, body in self._decoder.feed(data):
                    if not self.is_open:
                        return
                    self._on_frame(peer_codec.decode_header(header), body)
        except (PeerProtocolError, MalformedRequestError) as error:
            self.abort(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits for this link."""
        self.failure = self.failure or (str(exc) if exc else self._silent_end())
        was_open, self.is_open = self.is_open, False
        if self._deadline is not None:
            self._deadline.cancel()
        if not self.ready.done():
            self.ready.set_result(None)
        self._on_lost(was_open)
        if not self.closed.done():
            self.closed.set_result(None)

    def _silent_end(self) -> str:
        """What it means that the peer hung up: it cannot say so when it was not convinced."""
        if self._handshake.peer is not None and not self._handshake.is_complete:
            return "the peer hung up on the proof of the cluster secret: it has another one, or stopped"
        return "the peer closed the connection"

    def pause_writing(self) -> None:
        """Too many unsent bytes."""
        self.is_full = True

    def resume_writing(self) -> None:
        """The peer has read on."""
        self.is_full = False

    # What the owner calls

    def abort(self, reason: str) -> None:
        """Drop the connection without sending what is queued."""
        self.failure = self.failure or reason
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()
        elif not self.closed.done():
            self.closed.set_result(None)

    def hang_up(self, reason: str) -> None:
        """Send what is queued, then close; nothing more is read."""
        self.failure = self.failure or reason
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def send(self, header: bytes, body: Sequence[Buffer] = ()) -> None:
        """Queue a frame; the link must be open."""
        assert self._encoder is not None, "a frame before the handshake"
        assert self._transport is not None, "a frame without a connection"
        self._transport.writelines(self._encoder.encode(header, body))

    # What an end defines

    def _on_open(self) -> None:
        """The peer has proved who it is."""

    def _on_frame(self, parts: list[object], body: bytes) -> None:
        """A whole frame has arrived."""
        raise MalformedRequestError(f"a frame of kind {parts[0]} has no place here")

    def _on_lost(self, was_open: bool) -> None:
        """The connection is gone."""

    def _shake_hands(self, data: bytes) -> bytes:
        """Take bytes of the handshake; returns those that came behind it."""
        assert self._transport is not None, "bytes without a connection"
        self._handshake.receive(data)
        outgoing = self._handshake.outgoing()
        if outgoing:
            self._transport.write(outgoing)
        if not self._handshake.is_complete:
            return b""
        return self._open(self._handshake.finish())

    def _open(self, session: Session) -> bytes:
        self._encoder, self._decoder = session.encoder, session.decoder
        self.peer_id = session.peer.node_id
        self.is_open = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._on_open()
        if not self.ready.done():
            self.ready.set_result(None)
        return session.leftover


class CallerLink(Link):
    """The dialer's end: sends requests, waits for answers.

    ``on_lost`` is called once, for a link that was open and that the owner did not close.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handshake: Handshake,
        channel: Channel,
        on_lost: Callable[["CallerLink"], None],
    ) -> None:
        super().__init__(loop, handshake)
        self.channel = channel
        self._on_lost_callback: Callable[[CallerLink], None] | None = on_lost
        self._answers: dict[int, asyncio.Future[tuple[Fields, bytes]]] = {}
        self._next_id = 0
        self._drained: asyncio.Future[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._silent_rounds = 0
        self._calm_rounds = 0
        self._unused_rounds = 0
        self._expects = False
        """Whether an answer or a pong is due."""
        self._patience = SILENT_ROUNDS_MAX

    @property
    def is_silent(self) -> bool:
        """Nothing was heard for so long that nobody should wait on this peer."""
        return self._silent_rounds >= self._patience and not self._has_heard

    def close(self) -> None:
        """The owner is done with it; waiting calls fail as lost."""
        self._on_lost_callback = None
        self.abort("this node closed the connection")

    def resume_writing(self) -> None:
        """Let waiting calls go on."""
        super().resume_writing()
        self._release()

    async def wait_for_room(self) -> None:
        """Return once the link is not full any more, or is lost."""
        while self.is_full and self.is_open:
            if self._drained is None:
                self._drained = self._loop.create_future()
            # Shielded: one caller's deadline must not wake the others.
            await asyncio.shield(self._drained)

    def start_call(
        self, request_type: str, fields: Fields, body: Sequence[Buffer]
    ) -> tuple[int, asyncio.Future[tuple[Fields, bytes]]]:
        """Send a request; the future holds the answer, the peer's error, or ``PeerLostError``.

        Raises:
            PeerUnreachableError: too many calls wait already; nothing was sent.
            RequestTooLargeError: the body does not fit in a frame; nothing was sent.
        """
        _check_size(body)
        if self.is_silent:
            raise PeerUnreachableError(
                f"no sign of life from node {self.peer_id}; nothing was sent"
            )
        if len(self._answers) >= CALLS_IN_FLIGHT_MAX:
            raise PeerUnreachableError(
                f"{len(self._answers)} requests to node {self.peer_id} wait for an answer; not sent"
            )
        request_id = self._next_id
        self._next_id += 1
        self.send(peer_codec.encode_request(request_id, request_type, fields), body)
        answer = self._loop.create_future()
        self._answers[request_id] = answer
        self._unused_rounds, self._expects = 0, True
        if self._watch is None:
            self._watch = self._loop.call_later(PING_MS[self.channel] / 1000, self._on_watch)
        return request_id, answer

    def forget(self, request_id: int) -> None:
        """Its caller does not wait any more."""
        self._answers.pop(request_id, None)

    def _on_open(self) -> None:
        self.send(peer_codec.encode_hello(self.channel))

    def _on_frame(self, parts: list[object], body: bytes) -> None:
        match parts:
            case [kind, int(request_id), dict(fields)] if kind == ANSWER:
                answer = self._answers.pop(request_id, None)
                if answer is not None and not answer.done():
                    answer.set_result((cast("Fields", fields), body))
            case [kind, int(request_id), code, message, leader] if kind == REFUSAL:
                answer = self._answers.pop(request_id, None)
                if answer is not None and not answer.done():
                    answer.set_exception(peer_codec.decode_error(code, message, leader))
            case [kind] if kind == PONG:
                pass
            case _:
                super()._on_frame(parts, body)

    def _on_lost(self, was_open: bool) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._release()
        self._fail_answers(f"the connection to node {self.peer_id} was lost: {self.failure}")
        if was_open and self._on_lost_callback is not None:
            self._on_lost_callback(self)

    def _release(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def _on_watch(self) -> None:
        """One round: runs while the link is in use or the peer is silent, so that an idle link costs nothing."""
        self._watch = None
        has_heard, self._has_heard = self._has_heard, False
        if has_heard:
            self._learn_patience()
            self._silent_rounds = 0
        elif self._expects:
            self._silent_rounds += 1
        self._unused_rounds += 1
        is_wanted = self._answers or self._silent_rounds or self._unused_rounds < WATCHED_ROUNDS
        if not self.is_open or not is_wanted:
            return
        silent_ms = self._silent_rounds * PING_MS[self.channel]
        if self._silent_rounds >= LOST_ROUNDS_MAX:
            self.abort(f"no sign of life for {silent_ms} ms")
            return
        if self._silent_rounds >= self._patience:
            self._fail_answers(f"no sign of life from node {self.peer_id} for {silent_ms} ms")
        if not has_heard:
            self.send(peer_codec.encode_ping())
        self._expects = bool(self._answers) or not has_heard
        self._watch = self._loop.call_later(PING_MS[self.channel] / 1000, self._on_watch)

    def _learn_patience(self) -> None:
        """The peer spoke: how long it may be silent and live. Rounds are counted, not measured."""
        if self._patience <= self._silent_rounds <= 2 * self._patience:
            self._patience = min(2 * self._silent_rounds, PATIENCE_ROUNDS_MAX)
            self._calm_rounds = 0
        elif self._patience > SILENT_ROUNDS_MAX:
            self._calm_rounds += 1
            if self._calm_rounds >= CALM_ROUNDS:
                self._patience -= 1
                self._calm_rounds = 0

    def _fail_answers(self, why: str) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(PeerLostError(why))


class ServerLink(Link):
    """The listener's end: runs handlers, sends what they return.

    Reading stops while handlers hold too many requests or bytes, or the peer does not read its answers.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handshake: Handshake,
        handlers: Mapping[str, Handler],
        owner: "ServerLinkOwner",
    ) -> None:
        super().__init__(loop, handshake)
        self.channel: Channel | None = None
        self._handlers = handlers
        self._owner = owner
        self._running: dict[int, asyncio.Future[Reply]] = {}
        self._held_bytes = 0
        self._is_reading = True

    def pause_writing(self) -> None:
        """Answers pile up: take no more requests."""
        super().pause_writing()
        self._steer_reading()

    def resume_writing(self) -> None:
        """The peer has read its answers."""
        super().resume_writing()
        self._steer_reading()

    def _on_frame(self, parts: list[object], body: bytes) -> None:
        match parts:
            case [kind, int(request_id), str(request_type), dict(fields)] if (
                kind == REQUEST and self.channel is not None
            ):
                self._on_request(request_id, request_type, cast("Fields", fields), body)
            case [kind] if kind == PING:
                self.send(peer_codec.encode_pong())
            case [kind, str(channel)] if kind == HELLO and self.channel is None:
                self.channel = _channel(channel)
                self._owner.link_opened(self)
            case _:
                super()._on_frame(parts, body)

    def _on_request(self, request_id: int, request_type: str, fields: Fields, body: bytes) -> None:
        handler = self._handlers.get(request_type)
        if handler is None:
            error = InvalidRequestError(f"this node knows no request {request_type!r}")
            self._refuse(request_id, error)
            return
        try:
            result = handler(self.peer_id, fields, body)
        except Exception as error:  # noqa: BLE001 - sorted by _refuse
            self._refuse(request_id, error)
            return
        if isinstance(result, tuple):
            self._answer(request_id, result)
            return
        task = asyncio.ensure_future(result, loop=self._loop)
        if request_id in self._running:
            task.cancel()
            raise MalformedRequestError(f"request id {request_id} is in use")
        self._running[request_id] = task
        self._held_bytes += len(body)
        task.add_done_callback(lambda done: self._on_done(request_id, len(body), done))
        self._steer_reading()

    def _on_done(self, request_id: int, body_bytes: int, done: "asyncio.Future[Reply]") -> None:
        self._running.pop(request_id, None)
        self._held_bytes -= body_bytes
        if done.cancelled():
            self._refuse(request_id, FateUnknownError("the request was cancelled on its way"))
        elif (error := done.exception()) is not None:
            self._refuse(request_id, error)
        else:
            self._answer(request_id, done.result())
        if not self._is_reading:
            self._steer_reading()

    def _answer(self, request_id: int, reply: Reply) -> None:
        if not self.is_open:
            return
        fields, body = reply
        try:
            _check_size(body)
            header = peer_codec.encode_answer(request_id, fields)
        except (MilenaError, TypeError, ValueError, OverflowError) as error:
            self._refuse(request_id, error)
        else:
            self.send(header, body)

    def _refuse(self, request_id: int, error: BaseException) -> None:
        if not isinstance(error, MilenaError):
            self._owner.handler_failed(error)
            error = FateUnknownError(f"the peer failed inside: {type(error).__name__}")
        if self.is_open:
            self.send(peer_codec.encode_refusal(request_id, error))

    def _on_lost(self, was_open: bool) -> None:
        for task in list(self._running.values()):
            task.cancel()
        self._owner.link_lost(self)

    def _steer_reading(self) -> None:
        if self._transport is None or not self.is_open:
            return
        may_read = (
            not self.is_full
            and len(self._running) < CALLS_IN_FLIGHT_MAX
            and self._held_bytes < BYTES_IN_FLIGHT_MAX
        )
        if may_read != self._is_reading:
            self._is_reading = may_read
            if may_read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()


class ServerLinkOwner:
    """What a ``ServerLink`` tells about itself."""

    def link_opened(self, link: ServerLink) -> None:
        """The peer has proved who it is and named its channel."""

    def link_lost(self, link: ServerLink) -> None:
        """The connection is gone; called once for every link, opened or not."""

    def handler_failed(self, error: BaseException) -> None:
        """A handler raised something else than a ``MilenaError``."""


def _check_size(body: Sequence[Buffer]) -> None:
    body_bytes = sum(map(len, body))
    if body_bytes > BODY_BYTES_MAX:
        raise RequestTooLargeError(f"a body of {body_bytes} bytes is above {BODY_BYTES_MAX}")


def _channel(name: str) -> Channel:
    try:
        return Channel(name)
    except ValueError:
        raise MalformedRequestError(f"unknown channel {name!r}") from None
