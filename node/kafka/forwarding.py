"""One address for all nodes: a request that a node takes for another one goes there over the peer port.

Behind one address, a connection ends at any node. The client believes that it talks to the broker that it chose: the
leader of its partitions, or the coordinator of its group. So the node finds out which broker that is (``owners``),
passes the whole request on, and returns the response unchanged. That broker serves the request as if it had come to it:
under its own rules, with its own error codes. It never passes a request on. If its image differs, it answers as any
broker that does not lead, and the client asks for the leaders again.

Order: the requests of one client connection leave in order, over one link between two nodes, and the other node starts
them in order (``lane``). A request for another broker, or for this one, waits until those before it that went elsewhere
are answered. So the batches of a producer stay in order. If one is refused, wherever it was, those behind it are not
passed on (``refused_batches``).

If nothing was sent, this node serves the request itself: it refuses what it does not lead. If a response is lost, the
connection ends, and the client repeats the request, as it does when a broker dies. No later request of the connection
is passed on: it would overtake the lost one.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from msgspec import field as wire_field

from http_api.access import on_behalf
from http_api.access.callers import VouchedCaller
from milena.model.errors import InvalidRequestError, MilenaError
from node.kafka.apis.api import (
    Api,
    Body,
    CloseConnectionError,
    KafkaAddress,
    KafkaCall,
    KafkaServices,
    Started,
    decode,
    serve,
)
from node.kafka.apis.owners import OWNERS
from node.kafka.apis.produce import is_behind_refused
from node.kafka.identity import VouchedIdentity
from node.kafka.refused_batches import RefusedBatch
from node.kafka.wire.primitives import MalformedFrameError, WireReader
from node.metrics.counts import KafkaCounts
from node.peers.codec import Fields
from node.peers.messages import CallType, Message, pack, unpack
from node.peers.port import Peers, PeerUnreachableError, Reply

REACH_MS = 1_000
"""How long a request may wait for a connection to its broker. Nothing was sent, so it is served here then."""
FORWARDED_MS_MAX = 600_000
"""How long a request may wait for its response. Members of a group wait for a rebalance, and links notice a dead peer
long before this."""


class ForwardedRequest(Message, frozen=True, kw_only=True):
    """A client's request; its body is that of the frame. ``lane``: its connection, at the node that has it."""

    key: int
    version: int
    client_id: str = wire_field(name="client")
    client_host: str = wire_field(name="from")
    caller: str
    """The client's principal; empty if the cluster asks for no credentials. The other node has let it in."""
    user: str | None = None
    user_index: int = 0
    groups: tuple[str, ...] = ()
    token: str | None = None
    expires_ms: int = 0
    host: str
    port: int
    listener: str
    lane: int


class ForwardedAnswer(Message, frozen=True, kw_only=True):
    """The response is in the body, if there is one. ``code``: its first error code; ``refused``: see ``KafkaCall``."""

    has_body: bool = wire_field(name="has")
    code: int
    refused: tuple[RefusedBatch, ...] = ()


PRODUCE = 0
"""The API key of Produce."""
FORWARDED = CallType("kafka", ForwardedRequest, ForwardedAnswer)


@dataclass(slots=True)
class _ConnectionTurns:
    """The requests of one client connection that are starting. ``users``: those that have it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


@dataclass(slots=True)
class _OnTheirWay:
    """The pipelined requests of one client connection that have no response yet."""

    answers: dict[asyncio.Future[Body | None], int | None] = field(default_factory=dict)
    """Response → the broker that the request was passed on to; None: this one serves it."""
    lost: MilenaError | None = None
    """Why a request that was passed on has got no response."""


class KafkaForwarding:
    """Both ends of a forwarded request. Belongs to the data loop."""

    def __init__(
        self, services: KafkaServices, apis: Mapping[int, Api], peers: Peers, counts: KafkaCounts
    ) -> None:
        self._services = services
        self._apis = apis
        self._peers = peers
        self._counts = counts
        self._lanes: dict[tuple[int, int], _ConnectionTurns] = {}
        self._passed: dict[int, _OnTheirWay] = {}
        """By lane; until its connection is closed."""

    # -- the node that has the connection --------------------------------------------------------

    async def serve(self, call: KafkaCall, lane: int) -> Body | Started | None:
        """Serve a request here, or where it belongs. The next request of the connection may start when this returns.

        Raises:
            CloseConnectionError: the response is lost.
            MalformedFrameError: the frame does not hold the request.
        """
        await decode(self._services, call)
        if not call.address.is_shared:
            return await serve(self._services, call)
        target = self._target(call)
        passed = self._passed.setdefault(lane, _OnTheirWay())
        elsewhere = [answer for answer, broker_id in passed.answers.items() if broker_id != target]
        if elsewhere:
            await asyncio.wait(elsewhere)
        reaches = target is not None and await self._reaches(target)
        if passed.lost is not None:
            raise CloseConnectionError(passed.lost)
        if target is None or not reaches or self._is_behind_refused(call):
            target = None
            found = await serve(self._services, call)
            if not isinstance(found, Started):
                return found
            # A batch that was appended here may be cut off after another broker has become the leader.
            answer = asyncio.ensure_future(found.answer)
        else:
            answer = asyncio.ensure_future(self._ask(target, call, passed, lane))
            if not call.api.is_pipelined:
                return await answer
        passed.answers[answer] = target
        answer.add_done_callback(passed.answers.pop)
        return Started(answer)

    def forget(self, lane: int) -> None:
        """Forget a connection that is closed."""
        self._passed.pop(lane, None)

    def _is_behind_refused(self, call: KafkaCall) -> bool:
        return call.api.key == PRODUCE and is_behind_refused(self._services, call.fork())

    def _target(self, call: KafkaCall) -> int | None:
        """Return the other broker that has to serve the request; None: this one can."""
        owner = OWNERS.get(call.api.key)
        if owner is None:
            return None
        found = owner(self._services, call.fork())
        return None if found == self._services.metadata.node_id else found

    async def _reaches(self, broker_id: int) -> bool:
        try:
            await self._peers.connect(broker_id, timeout_ms=REACH_MS)
        except PeerUnreachableError:
            return False
        return True

    async def _ask(
        self, broker_id: int, call: KafkaCall, passed: _OnTheirWay, lane: int
    ) -> Body | None:
        self._counts.forwarded += 1
        vouched = VouchedCaller.of(call.identity.last_caller)
        request = ForwardedRequest(
            key=call.api.key,
            version=call.version,
            client_id=call.client_id,
            client_host=call.host,
            caller=vouched.principal,
            user=vouched.user,
            user_index=vouched.user_index,
            groups=vouched.groups,
            token=vouched.token_id,
            expires_ms=vouched.expires_ms,
            host=call.address.host,
            port=call.address.port,
            listener=call.address.listener,
            lane=lane,
        )
        try:
            fields, body = await self._peers.call(
                broker_id,
                FORWARDED.name,
                pack(request)[0],
                [call.reader.rest()],
                timeout_ms=FORWARDED_MS_MAX,
            )
            answer = unpack(ForwardedAnswer, fields)
        except MilenaError as error:
            passed.lost = error
            raise CloseConnectionError(error) from error
        call.note(answer.code)
        self._services.refused_batches.note(
            answer.refused, vouched.principal, self._services.clock.now_ms()
        )
        return [body] if answer.has_body else None

    # -- the broker that serves it ---------------------------------------------------------------

    async def on_request(self, peer_id: int, fields: Fields, body: bytes) -> Reply:
        """Serve a request that another node passes on.

        Raises:
            MilenaError: the response can only be the end of the connection.
        """
        asked = unpack(ForwardedRequest, fields)
        api = self._apis.get(asked.key)
        if api is None or not api.first <= asked.version <= api.last:
            raise InvalidRequestError(f"version {asked.version} of API {asked.key} is not served")
        vouched = VouchedCaller(
            principal=asked.caller,
            user=asked.user,
            user_index=asked.user_index,
            groups=asked.groups,
            token_id=asked.token,
            expires_ms=asked.expires_ms,
        )
        call = KafkaCall(
            api,
            asked.version,
            asked.client_id,
            WireReader(body, 0, is_flexible=asked.version >= api.flexible_from),
            address=KafkaAddress(asked.host, asked.port, asked.listener, is_shared=True),
            identity=VouchedIdentity(self._services.access, asked.client_host, vouched),
        )
        # Tasks that the handler starts inherit it.
        on_behalf.principal.set(asked.caller)
        try:
            async with self._in_turn((peer_id, asked.lane)):
                await self._services.metadata.catch_up()
                await decode(self._services, call)
                started = await serve(self._services, call)
            found = await started.answer if isinstance(started, Started) else started
        except MalformedFrameError as error:
            raise InvalidRequestError(error.message) from error
        except CloseConnectionError as error:
            raise error.cause from error
        answer = ForwardedAnswer(
            has_body=found is not None, code=call.code, refused=tuple(call.refused)
        )
        return pack(answer)[0], found or []

    @asynccontextmanager
    async def _in_turn(self, key: tuple[int, int]) -> AsyncIterator[None]:
        """Wait until the requests of the same connection that came before have started."""
        lane = self._lanes.setdefault(key, _ConnectionTurns())
        lane.users += 1
        try:
            async with lane.lock:
                yield
        finally:
            lane.users -= 1
            if not lane.users:
                del self._lanes[key]
