"""One connection between two nodes: handshake, frames, back-pressure, and the two ends of a call.

The byte formats are ``raft_meta.consensus.frames`` (sans I/O) and ``node.peers.codec``; this is the asyncio shell.
``node.peers.client`` dials, ``node.peers.server`` accepts; they know the nodes.

A link belongs to one loop, and only its transport drives it. The protocol of a link:

1. The dialer has sent the preface, in the clear. Then both run the handshake, under TLS if it is configured.
2. The dialer sends a hello that names the channel. From here on only the dialer sends requests, and only the listener
   responds.
3. Requests are multiplexed by id; responses may arrive in any order. A late response is dropped if its caller gave up.
4. A dialer pings, in rounds, while a link is in use. ``node.peers.watch`` decides what silence means.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, cast

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
"""Fields and body of a response. The chunks of the body are sent unchanged and never joined."""

Answer: TypeAlias = tuple[Fields, bytes]
"""A reply as it arrives."""

Handler: TypeAlias = Callable[[int, Fields, bytes], Reply | Pending[Reply] | Awaitable[Reply]]
"""(peer's node id, fields, body) -> reply.

The reply of a plain function is sent at once, without a task. The reply of a ``Pending`` is sent in the turn in which
it is done; a future takes one turn more, a coroutine takes a task. All three are cancelled when the link is lost,
because no peer waits for the response.
"""

IdentitySource: TypeAlias = Callable[[], PeerIdentity]
"""Returns this node's identity. Called at every handshake, because the cluster id is learnt at the first start."""

WRITE_BUFFER_BYTES_MAX = 4 << 20
"""A link with more unsent bytes counts as full. Four responses of 1 MB may be in flight."""
HANDSHAKE_MS_MAX = 3_000
"""A handshake is two round trips; a peer that needs longer is stalled."""
CALLS_IN_FLIGHT_MAX = 8_192
"""Requests in flight per link: twice those that an API takes."""
BYTES_IN_FLIGHT_MAX = 256 << 20
"""Bytes of request bodies that a listener's handlers hold, per link: four frames of the largest size."""


PROGRESS_BYTES_MIN = 1_024
"""Bytes of an unfinished frame that count as a sign of life in one round: more than the pongs of many rounds. A frame
with a damaged length swallows all bytes behind it, pongs included. Without this bound the link would look alive."""


class PeerUnreachableError(UnavailableError):
    """The peer could not be asked: nothing was sent."""


class PeerLostError(FateUnknownError):
    """The request was sent, then the link broke or the answer did not come in time."""


class Link(asyncio.Protocol):
    """The state and duties that both ends share.

    ``ready`` is done once the peer has proved its identity, or the link has failed before that; see ``is_open``.
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
        """Done once the connection is gone."""
        self.is_open = False
        """Whether the handshake is done and the connection is up, so that frames may be sent."""
        self.is_full = False
        """Whether the peer reads slower than this node writes."""
        self.peer_id = 0
        self.failure = ""
        """Reason why the link ended, for log lines and messages; the first reason stays."""

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake and its deadline."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        if self.failure:
            # The owner gave up before the connection was made: ``closed`` is done already.
            self._transport.abort()
            return
        self._deadline = self._loop.call_later(
            HANDSHAKE_MS_MAX / 1000, self.abort, "the handshake took too long"
        )
        if self._handshake.verifies_id:
            self._handshake.certified_ids = certified_ids(transport.get_extra_info("peercert"))
        self._transport.write(self._handshake.outgoing())

    def data_received(self, data: bytes) -> None:
        """Pass the bytes to the present stage of the link."""
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
        """Report an error that bytes of the peer must not cause, and drop the connection."""
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
        """Return the likely reason of a peer that hung up. A peer that refuses a handshake cannot give its reason."""
        if self._handshake.peer is not None and not self._handshake.is_complete:
            return "the peer hung up on the proof of the cluster secret: it has another one, or stopped"
        return "the peer closed the connection"

    def pause_writing(self) -> None:
        """Mark the link as full: too many bytes are unsent."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Mark the link as not full: the peer has read enough."""
        self.is_full = False

    # Called by the owner

    def abort(self, reason: str) -> None:
        """Drop the connection without sending queued bytes."""
        self.failure = self.failure or reason
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()
        elif not self.closed.done():
            self.closed.set_result(None)

    def hang_up(self, reason: str) -> None:
        """Send queued bytes, then close; nothing more is read."""
        self.failure = self.failure or reason
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def send(self, header: bytes, body: Sequence[Buffer] = ()) -> None:
        """Queue a frame; the link must be open."""
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
        """Called when the connection is gone."""

    def _shake_hands(self, data: bytes) -> bytes:
        """Take bytes of the handshake; return the bytes behind it."""
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
    """The dialer's end: sends requests, waits for responses.

    ``on_lost`` is called once, for a link that was open and that the owner did not close.
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
        """Bytes that arrived in this round."""
        self._sign: asyncio.Future[None] | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the peer was silent for so long that no caller should wait for it."""
        return self._silence.is_silent

    @property
    def is_doubtful(self) -> bool:
        """Whether the peer was silent for so long that new calls should wait for a sign of life."""
        return self._silence.is_doubtful

    async def wait_for_sign(self) -> None:
        """Wait until the peer was heard, counts as silent, or the link is lost."""
        while self.is_doubtful and self.is_open:
            if self._sign is None:
                self._sign = self._loop.create_future()
            # Shielded: one caller's deadline must not wake the others.
            await asyncio.shield(self._sign)

    def data_received(self, data: bytes) -> None:
        """Count the bytes as a sign of life, unless they are a few bytes of an unfinished frame."""
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
        """Close the link for its owner; waiting calls fail as lost."""
        self._on_lost_callback = None
        self.abort("this node closed the connection")

    def resume_writing(self) -> None:
        """Resume the waiting calls."""
        super().resume_writing()
        self._release()

    async def wait_for_room(self) -> None:
        """Wait until the link is not full any more, or is lost."""
        while self.is_full and self.is_open:
            if self._drained is None:
                self._drained = self._loop.create_future()
            # Shielded: one caller's deadline must not wake the others.
            await asyncio.shield(self._drained)

    def start_call(
        self, request_type: str, fields: Fields, body: Sequence[Buffer], answer: Taker[Answer]
    ) -> int:
        """Send a request and return its id. ``answer`` gets the response, the peer's error, or ``PeerLostError``.

        A ``Pending`` calls back while the frame of the response is handled. Its callback may send the next request.

        Raises:
            PeerUnreachableError: too many calls wait already; nothing was sent.
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
        """Forget a request whose caller does not wait any more; its response will be dropped."""
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
        # Before the callbacks of waiting calls: they may drop the link, and it would then not count as lost.
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
            # As the last step, because a callback may drop the link.
            silent_ms = self._silence.silent_ms
            self._fail_answers(f"no sign of life from node {self.peer_id} for {silent_ms} ms")
            self._give_sign()

    def _fail_answers(self, why: str) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(PeerLostError(why))


class ServerLink(Link):
    """The listener's end: runs handlers, sends their replies.

    Reading stops while handlers hold too many requests or bytes, or the peer does not read its responses.
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
        """Stop reading requests: too many responses are unsent."""
        super().pause_writing()
        self._steer_reading()

    def resume_writing(self) -> None:
        """Read requests again: the peer has read its responses."""
        super().resume_writing()
        self._steer_reading()

    def _on_frame(self, parts: list[object], body: bytes) -> None:
        if parts[0] == REQUEST and len(parts) == 4 and self.channel is not None:
            _, request_id, request_type, fields = parts
            # Not a match statement: it would take ten times as long, and nearly all frames are requests.
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
        """Send the error to the peer. Only this method contains unexpected errors of handlers."""
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


class ServerLinkOwner:
    """The owner of a ``ServerLink``, which the link calls."""

    def link_opened(self, link: ServerLink) -> None:
        """Called when the peer has proved its identity and named its channel."""

    def link_lost(self, link: ServerLink) -> None:
        """Called when the connection is gone, once for every link, opened or not."""

    def handler_failed(self, error: BaseException, request_id: str) -> MilenaError:
        """Called when a handler raised an error that is no ``MilenaError``; return the refusal for the peer."""
        raise NotImplementedError


def _check_header(header: bytes) -> None:
    """Refuse a header that is too large: the peer would drop the connection, and with it all other calls."""
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
