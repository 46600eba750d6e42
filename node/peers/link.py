"""One connection between two nodes on the data channel: handshake, frames, back-pressure, and both ends of a call.

``raft_meta.consensus.frames`` and ``node.peers.codec`` define the bytes. This module adds the I/O, with asyncio.
``node.peers.client`` dials links, and ``node.peers.server`` accepts them. They know which node is at the other end.

A link belongs to one loop, and only its transport calls it. The protocol of a link:

1. The dialer has sent the preface in the clear. Then both ends run the handshake, under TLS if it is configured.
2. The dialer sends a hello that names the channel. After that, only the dialer sends requests, and only the listener
   sends responses.
3. Requests have ids, and responses may arrive in any order. If a caller has given up, its response is dropped.
4. While a link is in use, its dialer sends pings, in rounds. ``node.peers.watch`` decides what silence means.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias, cast

from milena.model.errors import (
    FateUnknownError,
    InvalidRequestError,
    MalformedRequestError,
    MilenaError,
    RequestTooLargeError,
    UnavailableError,
)
from milena.model.pending import Pending, Taker
from node.peers import codec as peer_codec
from node.peers.codec import (
    ANSWER,
    HELLO,
    PING,
    PONG,
    REFUSAL,
    REQUEST,
    Buffer,
    Fields,
    PeerChannel,
)
from node.peers.watch import RHYTHMS, PeerWatch
from raft_meta.consensus.frames import (
    BODY_BYTES_MAX,
    HEADER_BYTES_MAX,
    FrameDecoder,
    FrameEncoder,
    Handshake,
    PeerIdentity,
    PeerProtocolError,
    Session,
)
from raft_meta.consensus.peer_certificates import certified_ids

log = logging.getLogger("milena.peer")

Reply: TypeAlias = tuple[Fields, Sequence[Buffer]]
"""The fields and the body of a response that is sent. The body's chunks are sent unchanged and never joined."""

Answer: TypeAlias = tuple[Fields, bytes]
"""The fields and the body of a response that has arrived."""

Handler: TypeAlias = Callable[[int, Fields, bytes], Reply | Pending[Reply] | Awaitable[Reply]]
"""Takes the peer's node id, the fields and the body; returns the reply.

If a handler returns the reply itself, it is sent at once, without a task. If it returns a ``Pending``, the reply is
sent in the turn in which the ``Pending`` is done. A future takes one turn more, and a coroutine takes a task. If the
link is lost, all three are cancelled, because no peer waits for the reply any more.
"""

IdentitySource: TypeAlias = Callable[[], PeerIdentity]
"""Returns this node's identity. Called at every handshake, because a node learns the cluster id at its first start."""

WRITE_BUFFER_BYTES_MAX = 4 << 20
"""If more bytes than this are unsent, the link counts as full. Four responses of 1 MB may be in flight."""
HANDSHAKE_MS_MAX = 3_000
"""A handshake takes two round trips. A peer that needs more time than this is stalled."""
CALLS_IN_FLIGHT_MAX = 8_192
"""Largest number of requests in flight on one link: twice as many as the API takes."""
BYTES_IN_FLIGHT_MAX = 256 << 20
"""Largest number of bytes of requests that handlers of one link hold: four frames of the largest size."""


PROGRESS_BYTES_MIN = 1_024
"""So many bytes of an unfinished frame in one round count as a sign of life. The pongs of many rounds are fewer bytes.
If the length in a frame is damaged, the decoder takes all later bytes, pongs included, as part of the frame. Without
this minimum, the link would then seem alive."""


class PeerUnreachableError(UnavailableError):
    """The peer could not be reached: nothing was sent."""


class PeerLostError(FateUnknownError):
    """The request was sent. Then the link broke, or the response did not arrive in time."""


class Link(asyncio.Protocol):
    """The state and the duties that both ends of a link have.

    ``ready`` is done once the peer has proved its identity, or the link has failed; ``is_open`` tells which.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, handshake: Handshake) -> None:
        self._loop = loop
        self._handshake = handshake
        self._encoder: FrameEncoder | None = None
        self._decoder: FrameDecoder | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done once the connection is closed."""
        self.is_open = False
        """Whether the handshake is done and the connection is open, so that frames may be sent."""
        self.is_full = False
        """Whether too many bytes are unsent, because the peer reads slower than this node writes."""
        self.peer_id = 0
        self.failure = ""
        """Why the link ended, for log lines and messages. The first reason is kept."""

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake and its deadline."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        if self.failure:
            # The owner gave up before the connection was made, and ``closed`` is already done.
            self._transport.abort()
            return
        self._deadline = self._loop.call_later(
            HANDSHAKE_MS_MAX / 1000, self.abort, "the handshake took too long"
        )
        if self._handshake.verifies_id:
            self._handshake.certified_ids = certified_ids(transport.get_extra_info("peercert"))
        self._transport.write(self._handshake.outgoing())

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the handshake, or after it to the decoder."""
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
        except Exception as error:  # noqa: BLE001 - one connection ends, and not the node
            self._on_unexpected(error)

    def _on_unexpected(self, error: BaseException) -> None:
        """Report an unexpected error while bytes of the peer were handled, and close the connection."""
        self.abort(f"{type(error).__name__} while bytes were taken in")
        self._loop.call_exception_handler(
            {"message": f"bytes of node {self.peer_id} could not be taken in", "exception": error}
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail everything that waits for this link."""
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
        """Return why the peer probably closed the connection. A peer that refuses a handshake sends no reason."""
        if self._handshake.peer is not None and not self._handshake.is_complete:
            return "the peer hung up on the proof of the cluster secret: it has another one, or stopped"
        return "the peer closed the connection"

    def pause_writing(self) -> None:
        """Mark the link as full, because too many bytes are unsent."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Mark the link as not full: the peer has read enough."""
        self.is_full = False

    # Called by the owner

    def abort(self, reason: str) -> None:
        """Close the connection at once. Unsent bytes are lost."""
        self.failure = self.failure or reason
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()
        elif not self.closed.done():
            self.closed.set_result(None)

    def hang_up(self, reason: str) -> None:
        """Send the unsent bytes, then close. Nothing more is read."""
        self.failure = self.failure or reason
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def send(self, header: bytes, body: Sequence[Buffer] = ()) -> None:
        """Send a frame, or queue it. The link must be open."""
        assert self._encoder is not None, "a frame before the handshake"
        assert self._transport is not None, "a frame without a connection"
        self._transport.writelines(self._encoder.encode(header, body))

    # Defined by each end

    def _on_open(self) -> None:
        """Called when the peer has proved its identity."""

    def _on_frame(self, parts: list[object], body: bytes) -> None:
        """Called when a whole frame has arrived."""
        raise MalformedRequestError(f"a frame of kind {parts[0]} has no place here")

    def _on_lost(self, was_open: bool) -> None:
        """Called when the connection is closed."""

    def _shake_hands(self, data: bytes) -> bytes:
        """Pass bytes to the handshake; return the bytes that arrived after it."""
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
    """The dialer's end of a link: it sends requests and waits for responses.

    ``on_lost`` is called once, when an open link is lost, but not if its owner closes it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handshake: Handshake,
        channel: PeerChannel,
        on_lost: Callable[["CallerLink"], None],
    ) -> None:
        super().__init__(loop, handshake)
        self.channel = channel
        self._on_lost_callback: Callable[[CallerLink], None] | None = on_lost
        self._answers: dict[int, Taker[Answer]] = {}
        self._next_id = 0
        self._drained: asyncio.Future[None] | None = None
        self._round: asyncio.TimerHandle | None = None
        self._silence = PeerWatch(RHYTHMS[channel])
        self._frames = 0
        self._round_bytes = 0
        """Bytes that have arrived in this round."""
        self._sign: asyncio.Future[None] | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the peer has been silent for so long that no caller should wait for it."""
        return self._silence.is_silent

    @property
    def is_doubtful(self) -> bool:
        """Whether the peer has been silent for so long that new calls should wait for a sign of life."""
        return self._silence.is_doubtful

    async def wait_for_sign(self) -> None:
        """Wait until the peer is heard, counts as silent, or the link is lost."""
        while self.is_doubtful and self.is_open:
            if self._sign is None:
                self._sign = self._loop.create_future()
            # Shielded, because other callers wait for the same future: a timeout of one must not cancel it.
            await asyncio.shield(self._sign)

    def data_received(self, data: bytes) -> None:
        """Count the bytes as a sign of life, unless they are only a few bytes of an unfinished frame."""
        before = self._frames
        super().data_received(data)
        self._round_bytes += len(data)
        if (
            self._decoder is None
            or self._frames != before
            or self._decoder.is_between_frames
            or self._round_bytes >= PROGRESS_BYTES_MIN
        ):
            self._silence.heard()
            if self._sign is not None:
                self._give_sign()

    def _give_sign(self) -> None:
        sign, self._sign = self._sign, None
        if sign is not None and not sign.done():
            sign.set_result(None)

    def close(self) -> None:
        """Close the link. Waiting calls fail as lost; ``on_lost`` is not called."""
        self._on_lost_callback = None
        self.abort("this node closed the connection")

    def resume_writing(self) -> None:
        """Let the calls that wait for room continue."""
        super().resume_writing()
        self._release()

    async def wait_for_room(self) -> None:
        """Wait until the link is not full any more, or is lost."""
        while self.is_full and self.is_open:
            if self._drained is None:
                self._drained = self._loop.create_future()
            # Shielded, because other callers wait for the same future: a timeout of one must not cancel it.
            await asyncio.shield(self._drained)

    def start_call(
        self, request_type: str, fields: Fields, body: Sequence[Buffer], answer: Taker[Answer]
    ) -> int:
        """Send a request and return its id. ``answer`` gets the response, the peer's error, or ``PeerLostError``.

        A ``Pending`` calls back while the frame of the response is handled. Its callback may send the next request.

        Raises:
            PeerUnreachableError: too many calls wait, or the peer is silent; nothing was sent.
            RequestTooLargeError: the fields or the body do not fit in a frame; nothing was sent.
        """
        if body:
            _check_size(body)
        header = peer_codec.encode_request(self._next_id, request_type, fields)
        _check_header(header)
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
        self.send(header, body)
        self._answers[request_id] = answer
        self._silence.asked()
        if self._round is None:
            self._start_round()
        return request_id

    def forget(self, request_id: int) -> None:
        """Drop the response to a request when it arrives: its caller does not wait any more."""
        self._answers.pop(request_id, None)

    def _on_open(self) -> None:
        self.send(peer_codec.encode_hello(self.channel))

    def _on_frame(self, parts: list[object], body: bytes) -> None:
        self._frames += 1
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
        if self._round is not None:
            self._round.cancel()
        self._release()
        self._give_sign()
        # Call this before the callbacks of waiting calls. They may drop the link, and then it would not count as lost.
        tell, self._on_lost_callback = self._on_lost_callback, None
        if was_open and tell is not None:
            tell(self)
        self._fail_answers(f"the connection to node {self.peer_id} was lost: {self.failure}")

    def _release(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def _start_round(self) -> None:
        self._round = self._loop.call_later(self._silence.rhythm.ping_ms / 1000, self._end_round)

    def _end_round(self) -> None:
        self._round, self._round_bytes = None, 0
        ended = self._silence.end_round(is_awaited=bool(self._answers))
        if not self.is_open or ended.is_last:
            return
        if ended.is_lost:
            self.abort(f"no sign of life for {self._silence.silent_ms} ms")
            return
        if ended.wants_ping:
            self.send(peer_codec.encode_ping())
        self._start_round()
        if ended.has_failed:
            # Do this last, because a callback may drop the link.
            silent_ms = self._silence.silent_ms
            self._fail_answers(f"no sign of life from node {self.peer_id} for {silent_ms} ms")
            self._give_sign()

    def _fail_answers(self, why: str) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(PeerLostError(why))


class ServerLink(Link):
    """The listener's end of a link: it runs handlers and sends their replies.

    It stops reading while its handlers hold too many requests or bytes, or while the peer does not read its responses.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handshake: Handshake,
        handlers: Mapping[str, Handler],
        owner: "ServerLinkOwner",
    ) -> None:
        super().__init__(loop, handshake)
        self.channel: PeerChannel | None = None
        self._handlers = handlers
        self._owner = owner
        self._running: dict[int, asyncio.Future[Reply] | Pending[Reply]] = {}
        self._held_bytes = 0
        self._is_reading = True

    def pause_writing(self) -> None:
        """Stop reading requests, because too many responses are unsent."""
        super().pause_writing()
        self._steer_reading()

    def resume_writing(self) -> None:
        """Read requests again: the peer has read enough responses."""
        super().resume_writing()
        self._steer_reading()

    def _on_frame(self, parts: list[object], body: bytes) -> None:
        if parts[0] == REQUEST and len(parts) == 4 and self.channel is not None:
            _, request_id, request_type, fields = parts
            # No match statement: it would take ten times as long, and nearly all frames are requests.
            if type(request_id) is int and type(request_type) is str and type(fields) is dict:
                self._on_request(request_id, request_type, fields, body)
                return
        match parts:
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
            if isinstance(result, tuple):
                self._answer(request_id, result)
                return
            running = (
                result
                if isinstance(result, Pending)
                else asyncio.ensure_future(result, loop=self._loop)
            )
        except Exception as error:  # noqa: BLE001 - sorted by _refuse
            self._refuse(request_id, error)
            return
        if request_id in self._running:
            running.cancel()
            raise MalformedRequestError(f"request id {request_id} is in use")
        self._running[request_id] = running
        self._held_bytes += len(body)
        running.add_done_callback(partial(self._on_done, request_id, len(body)))
        self._steer_reading()

    def _on_done(
        self, request_id: int, body_bytes: int, done: asyncio.Future[Reply] | Pending[Reply]
    ) -> None:
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
        try:
            fields, body = reply
            _check_size(body)
            header = peer_codec.encode_answer(request_id, fields)
            _check_header(header)
        except Exception as error:  # noqa: BLE001 - sorted by _refuse
            self._refuse(request_id, error)
        else:
            self.send(header, body)

    def _refuse(self, request_id: int, error: BaseException) -> None:
        """Send an error to the peer. An error that is no ``MilenaError`` is reported, and replaced by a refusal."""
        if not isinstance(error, MilenaError):
            name = f"{self.peer_id}-{self.channel}-{request_id}"
            error = self._owner.handler_failed(error, name)
        if self.is_open:
            self.send(peer_codec.encode_refusal(request_id, error))

    def _on_lost(self, was_open: bool) -> None:
        for running in list(self._running.values()):
            running.cancel()
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


class ServerLinkOwner(Protocol):
    """The owner of a ``ServerLink``. The link calls these methods."""

    def link_opened(self, link: ServerLink) -> None:
        """Called when the peer has proved its identity and named its channel."""

    def link_lost(self, link: ServerLink) -> None:
        """Called once for every link when its connection is closed, even if the link never opened."""

    def handler_failed(self, error: BaseException, request_id: str) -> MilenaError:
        """Called when a handler raised an error that is no ``MilenaError``; returns the refusal for the peer."""


def _check_header(header: bytes) -> None:
    """Refuse a header that is too large: the peer would close the connection, and all other calls on it would fail."""
    if len(header) > HEADER_BYTES_MAX:
        raise RequestTooLargeError(
            f"fields of {len(header)} bytes are above {HEADER_BYTES_MAX}; ask for less at a time"
        )


def _check_size(body: Sequence[Buffer]) -> None:
    body_bytes = sum(map(len, body))
    if body_bytes > BODY_BYTES_MAX:
        raise RequestTooLargeError(f"a body of {body_bytes} bytes is above {BODY_BYTES_MAX}")


def _channel(name: str) -> PeerChannel:
    try:
        return PeerChannel(name)
    except ValueError:
        raise MalformedRequestError(f"unknown channel {name!r}") from None
