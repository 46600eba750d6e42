"""Calls between nodes of one process, over a network that a test can cut, slow down and break.

Fields and errors go through the real codec, so values that cannot be encoded do not arrive here either. Requests of one
channel arrive in order, as over a connection; responses arrive in any order.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from milena.disk.files import Buffer
from milena.model.errors import InternalError, MilenaError
from milena.model.pending import Taker
from node.peers import codec as peer_codec
from node.peers.port import (
    Fields,
    Handler,
    PeerChannel,
    PeerLostError,
    PeerUnreachableError,
    ProbeResult,
)

Answer = tuple[Fields, bytes]
STEP_S = 1e-6
DIAL_MS_MAX = 2_000


@dataclass(eq=False)
class _Exchange:
    """A call in flight. ``answer`` is the future that the caller awaits."""

    caller: int
    target: int
    channel: PeerChannel
    answer: Taker[Answer]
    task: asyncio.Task[None] | None = None


@dataclass(eq=False)
class Network:
    """The network between nodes, with its cuts. Times are ms of the loop's clock."""

    delay_ms: Callable[[], float] = lambda: 0.0
    handlers: dict[int, dict[str, Handler]] = field(default_factory=dict)
    """Handlers of the running nodes."""
    cuts: set[tuple[int, int]] = field(default_factory=set)
    """Pairs (from, to) whose messages are lost without a sign."""
    listeners: dict[int, Callable[[int], None]] = field(default_factory=dict)
    """By node: functions that are called when a connection to another node breaks."""
    failures: list[BaseException] = field(default_factory=list)
    """Exceptions of handlers other than ``MilenaError``; a real node logs such an exception and goes on."""
    calls: list[tuple[int, int, str, Fields]] = field(default_factory=list)
    lose_answers_to: set[tuple[int, str]] = field(default_factory=set)
    """Pairs (caller, request type) whose responses are lost, while the connection stays."""
    exchanges: dict[_Exchange, None] = field(default_factory=dict)
    links: set[tuple[int, int]] = field(default_factory=set)
    """Pairs (caller, target) that are connected. A cut breaks no connection; it only loses what is sent."""
    disconnects: list[tuple[int, int]] = field(default_factory=list)
    """Pairs (caller, target) whose connection the caller closed."""
    arrivals: dict[tuple[int, int, PeerChannel], float] = field(default_factory=dict)

    def cut(self, one: int, other: int) -> None:
        self.cuts |= {(one, other), (other, one)}

    def isolate(self, node_id: int) -> None:
        for other in list(self.handlers):
            if other != node_id:
                self.cut(node_id, other)

    def heal(self) -> None:
        self.cuts.clear()

    def is_open(self, one: int, other: int) -> bool:
        """Return whether messages pass in both directions."""
        return not {(one, other), (other, one)} & self.cuts

    def join(self, node_id: int, handlers: dict[str, Handler]) -> "FakePeer":
        self.handlers[node_id] = handlers
        return FakePeer(self, node_id)

    def kill(self, node_id: int) -> None:
        """Remove a node whose process ended; its connections break."""
        self.handlers.pop(node_id, None)
        self.listeners.pop(node_id, None)
        self.links = {link for link in self.links if node_id not in link}
        others = set()
        for exchange in list(self.exchanges):
            if node_id in (exchange.caller, exchange.target):
                others.add(exchange.caller + exchange.target - node_id)
                self.end(exchange, f"the connection to node {node_id} was lost")
        for other in list(self.listeners):
            if self.is_open(node_id, other):
                self.listeners[other](node_id)

    def end(self, exchange: _Exchange, why: str) -> None:
        self.exchanges.pop(exchange, None)
        if exchange.task is not None:
            exchange.task.cancel()
        if not exchange.answer.done():
            exchange.answer.set_exception(PeerLostError(why))

    def arrival(self, caller: int, target: int, channel: PeerChannel) -> float:
        key = (caller, target, channel)
        now = asyncio.get_running_loop().time()
        at = max(self.arrivals.get(key, 0.0) + STEP_S, now + self.delay_ms() / 1000)
        self.arrivals[key] = at
        return at

    def deliver(self, exchange: _Exchange, request_type: str, fields: Fields, body: bytes) -> None:
        """Deliver a request to its handler."""
        handlers = self.handlers.get(exchange.target)
        if exchange.answer.done():
            return
        if handlers is None:
            self.end(exchange, "the peer is gone")
            return
        if (exchange.caller, exchange.target) in self.cuts:
            return
        exchange.task = asyncio.get_running_loop().create_task(
            self._serve(exchange, handlers, request_type, fields, body)
        )

    async def _serve(
        self,
        exchange: _Exchange,
        handlers: dict[str, Handler],
        request_type: str,
        fields: Fields,
        body: bytes,
    ) -> None:
        error: MilenaError | None = None
        answer: Answer = ({}, b"")
        try:
            result = handlers[request_type](exchange.caller, fields, body)
            reply = await result if inspect.isawaitable(result) else result
            answer = (travelled(reply[0]), b"".join(reply[1]))
        except MilenaError as raised:
            error = _as_seen(raised)
        except asyncio.CancelledError:
            return
        except Exception as raised:
            self.failures.append(raised)
            error = InternalError(
                f"Internal Server Error; the log has it under request_id={exchange.caller}-rpc-1"
            )
        await asyncio.sleep(self.delay_ms() / 1000)
        is_lost = (exchange.caller, request_type) in self.lose_answers_to
        if is_lost or (exchange.target, exchange.caller) in self.cuts or exchange.answer.done():
            return
        self.exchanges.pop(exchange, None)
        if error is not None:
            exchange.answer.set_exception(error)
        else:
            exchange.answer.set_result(answer)


class FakePeer:
    """An implementation of ``node.peers.port.Peers``."""

    def __init__(self, network: Network, node_id: int) -> None:
        self._network = network
        self._node_id = node_id

    async def call(
        self,
        node_id: int,
        request_type: str,
        fields: Fields,
        body: Sequence[Buffer] = (),
        *,
        timeout_ms: float,
        channel: PeerChannel = PeerChannel.RPC,
    ) -> Answer:
        network = self._network
        network.calls.append((self._node_id, node_id, request_type, fields))
        await self.connect(node_id, timeout_ms=timeout_ms)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        exchange = self._send(node_id, request_type, fields, body, answer, channel)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answer
        except TimeoutError:
            raise PeerLostError(f"node {node_id} did not answer {request_type!r}") from None
        finally:
            network.exchanges.pop(exchange, None)

    def ask(
        self,
        node_id: int,
        request_type: str,
        fields: Fields,
        answer: Taker[Answer],
        *,
        channel: PeerChannel,
    ) -> bool:
        if not self.is_connected(node_id, channel):
            return False
        self._network.calls.append((self._node_id, node_id, request_type, fields))
        self._send(node_id, request_type, fields, (), answer, channel)
        return True

    def _send(
        self,
        node_id: int,
        request_type: str,
        fields: Fields,
        body: Sequence[Buffer],
        answer: Taker[Answer],
        channel: PeerChannel,
    ) -> _Exchange:
        network = self._network
        exchange = _Exchange(self._node_id, node_id, channel, answer)
        network.exchanges[exchange] = None
        asyncio.get_running_loop().call_at(
            network.arrival(self._node_id, node_id, channel),
            network.deliver,
            exchange,
            request_type,
            travelled(fields),
            b"".join(body),
        )
        return exchange

    def is_connected(self, node_id: int, channel: PeerChannel = PeerChannel.RPC) -> bool:
        del channel
        return (self._node_id, node_id) in self._network.links

    async def connect(
        self, node_id: int, *, timeout_ms: float, channel: PeerChannel = PeerChannel.RPC
    ) -> None:
        network = self._network
        if self.is_connected(node_id, channel):
            return
        if node_id not in network.handlers or self._node_id not in network.handlers:
            await asyncio.sleep(network.delay_ms() / 1000)
            raise PeerUnreachableError(f"node {node_id} cannot be reached: connection refused")
        if not network.is_open(self._node_id, node_id):
            await asyncio.sleep(min(timeout_ms, DIAL_MS_MAX) / 1000)
            raise PeerUnreachableError(f"node {node_id} cannot be reached: no connection in time")
        network.links.add((self._node_id, node_id))

    def is_silent(self, node_id: int, channel: PeerChannel = PeerChannel.RPC) -> bool:
        return self.is_connected(node_id, channel) and not self._network.is_open(
            self._node_id, node_id
        )

    def disconnect(self, node_id: int, channel: PeerChannel | None = None) -> None:
        self._network.links.discard((self._node_id, node_id))
        self._network.disconnects.append((self._node_id, node_id))
        for exchange in list(self._network.exchanges):
            is_ours = (exchange.caller, exchange.target) == (self._node_id, node_id)
            if is_ours and channel in (None, exchange.channel):
                self._network.end(exchange, "this node closed the connection")

    async def probe(self, node_id: int, *, timeout_ms: float) -> ProbeResult:
        if node_id not in self._network.handlers:
            return ProbeResult.REFUSED
        if not self._network.is_open(self._node_id, node_id):
            await asyncio.sleep(timeout_ms / 1000)
            return ProbeResult.UNREACHABLE
        return ProbeResult.CONNECTED


def travelled(fields: Fields) -> Fields:
    """Return the fields as the receiver decodes them."""
    parts = peer_codec.decode_header(peer_codec.encode_answer(0, fields))
    arrived = parts[2]
    assert isinstance(arrived, dict)
    return arrived


def _as_seen(error: MilenaError) -> MilenaError:
    """Return the error as the caller gets it."""
    _, _, code, message, leader = peer_codec.decode_header(peer_codec.encode_refusal(0, error))
    return peer_codec.decode_error(code, message, leader)
