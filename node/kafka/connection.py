"""One client's connection: frames in, responses out, in the order of the requests.

Turns. The event loop does its other work between requests, however many of them came in one piece.

Order. A request starts when all before it are answered. Only Produce requests are pipelined: each one starts when the
one before it has been appended, and does not wait for the acknowledgement. Responses leave in the order of requests.

Back pressure. The connection stops reading, and refuses nothing: while ``IN_WORK_MAX`` requests are in work, and while
the bytes of all clients' requests exceed their bound (``budget``). No request starts while a response is unsent.

Hostile input. A malformed frame ends this connection, and nothing else. So does an error in a handler that the code did
not expect; it is reported (``contained``).

Strangers. While the cluster asks for credentials and the client has sent no good ones, only the APIs that authenticate
it are served. Its frames are short. At most ``IN_WORK_MAX`` of them may come at once, and the node reads no more until
they are answered. They have a bound of their own over all strangers, and must lead to good credentials within
``KafkaPatience.handshake_s``. In each turn of the event loop, one request of all strangers starts, so clients that are
let in do not wait for a thousand strangers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from http_api.access import on_behalf
from http_api.access.certificates import certificate_of
from http_api.protocol.errors import kafka_code_of
from http_api.serving.connections import Connections
from http_api.serving.places import pause
from http_api.serving.quotas import Payer, Quotas, payer_of
from http_api.streaming.unsent import UnsentAnswers, reset_when_closed, taken_bytes
from milena.model.contained import ContainedErrors, EntryPoint
from milena.model.errors import (
    MilenaError,
    NotReadyError,
    QuotaExceededError,
    UnauthenticatedError,
)
from milena.model.quotas import QuotaKey
from milena.model.turns import one_turn
from node.kafka.apis.api import (
    Api,
    Body,
    CloseConnectionError,
    KafkaAddress,
    KafkaCall,
    KafkaServices,
    Started,
)
from node.kafka.apis.sasl import raw_step
from node.kafka.budget import FrameBudget
from node.kafka.forwarding import KafkaForwarding
from node.kafka.identity import ConnectionIdentity
from node.kafka.throttle import CallQuota
from node.kafka.wire.frames import (
    FRAME_BYTES_MIN,
    SIZE_BYTES,
    FrameSplitter,
    body_of,
    framed,
    head_of,
)
from node.kafka.wire.primitives import MalformedFrameError
from node.metrics.counts import KafkaCounts

logger = logging.getLogger(__name__)

IN_WORK_MAX = 32
"""Requests of a connection that have no response yet. Above this, the connection stops reading."""
PIPELINED_PER_TURN = 16
"""Pipelined requests that start in one turn of the event loop. All others have a turn for each: they are slower, and
clients seldom send one before they have the response to the last."""
STRANGER_FRAME_BYTES_MAX = 64 << 10
"""The largest frame of a client that has to authenticate first."""
HANDSHAKE_MS_MAX = 10_000
"""How long a client may take to send good credentials."""
CLOSING_S = 5.0
"""How long a client may take to receive the last response."""
CLIENT_ID_SHOWN = 64
"""Characters of a client id in a log line."""
API_VERSIONS = 18
"""The API whose responses have the oldest header, because its versions are not agreed upon yet (KIP-511)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPatience:
    """How long a connection may keep the node waiting, in seconds."""

    first_request_s: float = 10.0
    handshake_s: float = HANDSHAKE_MS_MAX / 1000
    """From the start to good credentials, if the cluster asks for them."""
    frame_s: float = 60.0
    """From the first byte of a frame to its last one."""
    idle_s: float = 600.0
    """Without a request. Source: Kafka's ``connections.max.idle.ms``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerContext:
    """The parts that all connections of a listener share."""

    services: KafkaServices
    apis: Mapping[int, Api]
    forwarding: KafkaForwarding
    frame_bytes_max: int
    budget: FrameBudget
    strangers_budget: FrameBudget
    """Bounds the bytes of clients that have to authenticate first."""
    strangers_turn: asyncio.Lock
    """Held for one turn of the event loop by each request of such a client, before it starts."""
    connections: Connections
    unsent: UnsentAnswers
    contained: ContainedErrors
    counts: KafkaCounts
    patience: KafkaPatience
    next_lane: Callable[[], int]
    """Returns a number that no other connection of this node has."""
    on_closed: Callable[["KafkaConnection"], None]
    """Called when a connection is closed."""


@dataclass(slots=True)
class _Unanswered:
    """A request that has started. ``answer``: its response, or None if it gets none."""

    call: KafkaCall
    correlation_id: int
    frame_bytes: int
    answer: "asyncio.Future[Body | None]"


class KafkaConnection(asyncio.Protocol):
    """One connection. Belongs to the data loop.

    Invariants:
        ``_unanswered`` has the requests that started, in their order; ``_waiting`` has the frames behind them.
        A task runs exactly while there are frames in ``_waiting``, or a request that is not pipelined is in work.
    """

    def __init__(self, context: ListenerContext, address: Callable[[], KafkaAddress]) -> None:
        """Make a connection. ``address``: where clients reach the socket that accepted it."""
        self._context = context
        self._address = address
        self._lane = context.next_lane()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._host = ""
        self._identity = ConnectionIdentity(context.services.access, "", None)
        self._is_let_in = False
        """Whether the client's last request was served, or its next one would be."""
        self._budget = context.strangers_budget
        self._splitter = FrameSplitter(STRANGER_FRAME_BYTES_MAX, IN_WORK_MAX)
        self._waiting: deque[bytes] = deque()
        self._unanswered: deque[_Unanswered] = deque()
        self._task: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._is_starting = False
        """Whether the task works on a frame that is in neither of the two queues."""
        self._unmuting: asyncio.TimerHandle | None = None
        """Lets the connection read again, after its client has used up its quota; None: it reads."""
        self._is_reading = True
        self._is_held = False
        """Whether the budget of all clients stops this connection."""
        self._has_asked = False
        self._is_draining = False
        self._began_s = self._since_s = self._loop.time()
        self._frame_since_s: float | None = None
        self._closing_since_s: float | None = None

    # -- the transport ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a client in."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._host = "" if peer is None else str(peer[0])
        self._identity = ConnectionIdentity(
            self._context.services.access, self._host, certificate_of(transport)
        )
        self._context.counts.connections += 1
        self._context.connections.add(self)
        if self._identity.is_let_in():
            self._let_in()

    def _let_in(self) -> None:
        """Give the client the bounds of those that may send requests."""
        if not self._is_let_in:
            self._is_let_in = True
            self._splitter.bytes_max = self._context.frame_bytes_max
            self._splitter.frames_max = None
            count = self._budget.leave(self)
            self._budget = self._context.budget
            self._budget.take(self, count)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop everything that this client waits for. What was appended stays."""
        del exc
        context = self._context
        self._transport = None
        context.counts.connections -= 1
        context.connections.discard(self)
        context.unsent.discard(self)
        self._budget.leave(self)
        context.forwarding.forget(self._lane)
        context.on_closed(self)
        if self._unmuting is not None:
            self._unmuting.cancel()
        if self._task is not None:
            self._task.cancel()
        for entry in self._unanswered:
            entry.answer.cancel()
        self._waiting.clear()

    def pause_writing(self) -> None:
        """Start no further request: the client does not take its responses."""
        self._may_write.clear()
        self._context.unsent.add(self)

    def resume_writing(self) -> None:
        """Continue: the client has taken its responses."""
        self._context.unsent.discard(self)
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client."""
        if self._transport is None or self._transport.is_closing() or self._is_draining:
            return
        if not self._is_let_in and self._budget.is_flooded:
            # A connection is held only once it has brought bytes, and there may be thousands.
            self.force_close()
            return
        try:
            frames = self._splitter.feed(data)
        except MalformedFrameError as error:
            self._refuse(error)
            return
        self._since_s = self._loop.time()
        if not self._splitter.held_bytes:
            self._frame_since_s = None
        elif frames or self._frame_since_s is None:
            self._frame_since_s = self._since_s
        if frames:
            self._has_asked = True
            self._waiting += frames
            if self._task is None:
                self._context.connections.work(self)
                self._task = self._loop.create_task(self._serve())
        self._budget.take(self, len(data))
        self._flow()

    # -- Receiver and Closable -------------------------------------------------------------------

    def unsent_bytes(self) -> int:
        """Return the number of bytes that the client has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def taken_bytes(self) -> int:
        """Return the number of bytes that the client has taken."""
        return 0 if self._transport is None else taken_bytes(self._transport)

    def give_up(self) -> None:
        """Close the connection and drop what is unsent."""
        if self._transport is not None:
            reset_when_closed(self._transport)
            self._transport.abort()

    def drain(self) -> None:
        """Start no more requests, and close the connection once those in work have their responses."""
        self._is_draining = True
        self._waiting.clear()
        if not self.is_busy and self._transport is not None:
            self._transport.close()

    def force_close(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- flow ------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a request has no response yet."""
        return bool(self._waiting or self._unanswered or self._task is not None)

    async def idle(self) -> None:
        """Wait until every request that has arrived has its response."""
        while self._task is not None or self._unanswered:
            await asyncio.wait([self._task or self._unanswered[0].answer])
            # A wait for a response that is there does not let ``_flush`` run.
            await one_turn()

    def hold(self, is_held: bool) -> None:
        """Stop reading for the budget of all clients, or go on."""
        self._is_held = is_held
        self._flow()

    def _flow(self) -> None:
        """Read if there is room for more requests."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        most = IN_WORK_MAX if self._is_let_in else 1
        is_full = len(self._waiting) + len(self._unanswered) + self._is_starting >= most
        may_read = not (is_full or self._is_held or self._unmuting is not None)
        if may_read != self._is_reading:
            self._is_reading = may_read
            if may_read:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def check(self, now_s: float) -> None:
        """Close the connection if its client keeps the node waiting for too long, or may no longer send requests."""
        patience = self._context.patience
        if self._transport is not None and self._transport.is_closing():
            self._closing_since_s = self._closing_since_s or now_s
            if now_s - self._closing_since_s > CLOSING_S:
                self.force_close()
            return
        if not self._is_let_in and now_s - self._began_s > patience.handshake_s:
            self.force_close()
            return
        if self._is_let_in and not self.is_busy and self._identity.is_revoked():
            self.force_close()
            return
        if not self._is_reading and self._frame_since_s is not None:
            # The client cannot send the rest.
            self._frame_since_s = now_s
        if self.is_busy or not self._is_reading:
            self._since_s = now_s
            return
        idle_s = patience.idle_s if self._has_asked else patience.first_request_s
        began_s = self._frame_since_s
        is_slow = began_s is not None and now_s - began_s > patience.frame_s
        if is_slow or now_s - self._since_s > idle_s:
            self.force_close()

    # -- requests --------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Start the requests that have arrived, one after the other; end when there are no more."""
        in_turn = 0
        try:
            while self._waiting:
                await self._may_write.wait()
                if not self._is_let_in:
                    async with self._context.strangers_turn:
                        await one_turn()
                if not self._waiting:
                    # The node began to stop in the meantime (``drain``).
                    break
                self._is_starting = True
                work = self._authenticate if self._identity.is_raw else self._start
                is_pipelined = await work(self._waiting.popleft())
                self._is_starting = False
                self._flow()
                in_turn = in_turn + 1 if is_pipelined else PIPELINED_PER_TURN
                if self._waiting and in_turn >= PIPELINED_PER_TURN:
                    # One read may bring thousands of small requests that never wait for anything. Without a turn for
                    # other work, other clients and the other nodes would wait for all of them.
                    in_turn = 0
                    await one_turn()
        except MalformedFrameError as error:
            self._refuse(error)
        except CloseConnectionError as error:
            logger.debug("kafka connection closed: %s", error)
            self.force_close()
        except Exception as error:  # noqa: BLE001 - no request ends a node, whatever part of it failed
            self._context.contained.report(EntryPoint.KAFKA, error, "api", "-")
            self.force_close()
        finally:
            self._task = None
            self._rest()

    def _rest(self) -> None:
        """Note that the connection rests, if no request is in work; close it then if the node is stopping."""
        if self.is_busy or self._transport is None or self._transport.is_closing():
            return
        if self._is_draining:
            self._transport.close()
            return
        self._context.connections.rest(self)
        self._budget.rest()
        self._since_s = self._loop.time()

    async def _start(self, frame: bytes) -> bool:
        """Start a request; unless it is pipelined, wait for the responses before it, and for its own.

        Returns:
            Whether it is pipelined.
        """
        head = head_of(frame)
        api = self._context.apis.get(head.key)
        if api is None:
            raise MalformedFrameError(f"API key {head.key} is not served")
        if len(frame) > api.bytes_max:
            raise MalformedFrameError(f"a {api.name} request has {len(frame)} bytes")
        if not (api.first <= head.version <= api.last or head.key == API_VERSIONS):
            raise MalformedFrameError(f"{api.name} {head.version} is not served")
        if not api.is_pipelined:
            await self._settle()
            await self._may_write.wait()
        if head.key != API_VERSIONS:
            await self._check_caller(api)
        client_id, reader = body_of(frame, is_flexible=head.version >= api.flexible_from)
        call = KafkaCall(
            api,
            head.version,
            client_id,
            reader,
            address=self._address(),
            identity=self._identity,
        )
        if not api.access.is_public:
            await self._take_turn(call, len(frame))
        answer: asyncio.Future[Body | None]
        started = await self._handled(api, call)
        if api.access.is_public:
            self._expect()
        if isinstance(started, Started):
            answer = asyncio.ensure_future(started.answer)
        else:
            answer = self._loop.create_future()
            answer.set_result(started)
        self._unanswered.append(_Unanswered(call, head.correlation_id, len(frame), answer))
        if answer.done():
            self._flush()
        else:
            answer.add_done_callback(lambda _: self._flush())
        return api.is_pipelined

    async def _take_turn(self, call: KafkaCall, frame_bytes: int) -> None:
        """Charge the request to its caller's quotas, after the wait that they ask for.

        Raises:
            CloseConnectionError: the caller has too many connections.
        """
        quotas = self._context.services.access.quotas
        if not quotas.is_on:
            return
        principal = self._identity.last_caller.known_principal
        payer = payer_of(principal, self._host, call.client_id)
        self._have_connection(quotas, payer)
        call.quota = CallQuota(quotas, payer, call.api.key, self._loop.time)
        wait_s = call.quota.wait_s()
        if wait_s > 0:
            # The client did not wait, or another one has used the quota up.
            self._mute(wait_s)
            await pause(wait_s)
        call.quota.begin(frame_bytes)

    def _have_connection(self, quotas: Quotas, payer: Payer) -> None:
        connections = self._context.connections
        bound = quotas.bound(payer, QuotaKey.CONNECTION_COUNT)
        if bound is None or connections.is_of(self, bound.owner):
            return
        try:
            quotas.check_count(payer, QuotaKey.CONNECTION_COUNT, connections.count_of(bound.owner))
        except QuotaExceededError as error:
            raise CloseConnectionError(error) from error
        connections.claim(self, bound.owner)

    def _mute(self, wait_s: float) -> None:
        """Do not read for a while. Source: KIP-219."""
        until_s = self._loop.time() + wait_s
        if self._unmuting is not None:
            if self._unmuting.when() >= until_s:
                return
            self._unmuting.cancel()
        self._unmuting = self._loop.call_at(until_s, self._unmute)
        self._flow()

    def _unmute(self) -> None:
        # Do not compare the clock here: a timer of uvloop may fire up to a millisecond early, and there is no other.
        self._unmuting = None
        self._flow()

    def _expect(self) -> None:
        """Set the bounds of the next frame, after the client may have authenticated."""
        self._splitter.bytes_min = 0 if self._identity.is_raw else FRAME_BYTES_MIN
        if self._identity.is_let_in():
            self._let_in()

    async def _catch_up(self) -> None:
        """Wait until a node that has just started knows the users, the topics and the rest of the cluster.

        Raises:
            CloseConnectionError: it does not learn them now.
        """
        try:
            await self._context.services.metadata.catch_up()
        except MilenaError as error:
            raise CloseConnectionError(error) from error

    async def _check_caller(self, api: Api) -> None:
        """Find out who the client is now, unless anybody may send the request.

        Raises:
            CloseConnectionError: the client may send no requests.
        """
        await self._catch_up()
        if api.access.is_public:
            return
        try:
            caller = await self._identity.caller()
        except MilenaError as error:
            self._turn_away(api, error)
            raise CloseConnectionError(error) from error
        self._let_in()
        # Tasks that the handler starts inherit it.
        on_behalf.principal.set(caller.known_principal)

    def _turn_away(self, api: Api, error: MilenaError) -> None:
        """Note that the client may not send the request."""
        services, counts = self._context.services, self._context.counts.requests
        label = (api.name, kafka_code_of(error))
        count = counts[label] = counts.get(label, 0) + 1
        services.access.refusals.add("", self._host, error.message)
        if not count & (count - 1):
            # At powers of two, as for frames.
            text = "kafka client refused api=%s count=%d remote=%s reason=%s"
            logger.info(text, api.name, count, self._host, error.message)

    async def _authenticate(self, message: bytes) -> bool:
        """Take a message of SASL without a header, and send the response without one; return False."""
        await self._settle()
        await self._may_write.wait()
        await self._catch_up()
        answer = await raw_step(self._context.services, self._identity, message)
        self._budget.give_back(self, SIZE_BYTES + len(message))
        self._expect()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines([len(answer).to_bytes(SIZE_BYTES, "big"), answer])
        return False

    async def _handled(self, api: Api, call: KafkaCall) -> Body | Started | None:
        try:
            return await self._context.forwarding.serve(call, self._lane)
        except MalformedFrameError as error:
            named = f"{api.name} {call.version} of client {call.client_id[:CLIENT_ID_SHOWN]!r}"
            raise MalformedFrameError(f"{named}: {error.message}") from error
        except CloseConnectionError:
            raise
        except (UnauthenticatedError, NotReadyError) as error:
            # The client lost its access while the request was served.
            self._turn_away(api, error)
            raise CloseConnectionError(error) from error
        except Exception as error:
            raise CloseConnectionError(self._report(call, error)) from error

    def _report(self, call: KafkaCall, error: BaseException) -> MilenaError:
        return self._context.contained.report(EntryPoint.KAFKA, error, "api", call.api.name)

    async def _settle(self) -> None:
        """Wait until every request that has started has its response."""
        while self._unanswered:
            # The first one: if a later one is there before it, a wait for that would return at once, again and again.
            await asyncio.wait([self._unanswered[0].answer])
            self._flush()

    def _flush(self) -> None:
        """Send the responses that are there, up to the first request without one."""
        while self._unanswered and self._unanswered[0].answer.done():
            entry = self._unanswered.popleft()
            self._budget.give_back(self, SIZE_BYTES + entry.frame_bytes)
            if entry.answer.cancelled():
                continue
            error = entry.answer.exception()
            if error is None:
                self._send(entry, entry.answer.result())
                continue
            if not isinstance(error, CloseConnectionError):
                self._report(entry.call, error)
            self.force_close()
        self._flow()
        self._rest()

    def _send(self, entry: _Unanswered, body: Body | None) -> None:
        call, counts = entry.call, self._context.counts.requests
        label = (call.api.name, call.code)
        counts[label] = counts.get(label, 0) + 1
        if body is None or self._transport is None or self._transport.is_closing():
            return
        is_flexible = call.version >= call.api.flexible_from and call.api.key != API_VERSIONS
        self._transport.writelines(framed(entry.correlation_id, body, is_flexible=is_flexible))
        if call.is_last:
            self._transport.close()
        elif call.quota is not None:
            wait_s = call.quota.wait_s()
            if wait_s > 0:
                self._mute(wait_s)

    def _refuse(self, error: MalformedFrameError) -> None:
        """Close the connection, because its bytes are no request."""
        counts = self._context.counts
        counts.refused_frames += 1
        if not counts.refused_frames & (counts.refused_frames - 1):
            # At powers of two: a flood of frames must not become a flood of lines.
            logger.warning(
                "kafka frame refused count=%d reason=%s", counts.refused_frames, error.message
            )
        self.force_close()
