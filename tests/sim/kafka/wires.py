"""Connections of simulated Kafka clients: the node's own connection class, over a network that a run controls.

A request arrives late, in pieces, or not at all. A connection may break at any moment, so that a request was served and
its client does not know. A client that gives up a request connects again and repeats it, while the first one may still
be on its way: then the node gets it twice, and the first one last.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

from node.kafka.connection import KafkaConnection
from tests.support.clusters.kafka_clients import FakeTransport, decoded, request_frame

STEP_S = 1e-6
"""Bytes of one connection keep their order, so each piece arrives later than the one before."""
PIECES_CHANCE = 0.1
SIZE_BYTES, ID_BYTES = 4, 4


class ConnectionLostError(Exception):
    """No response will come. The request may have been served, or may still be."""


class ClientNetwork:
    """The network between clients and nodes."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.delays_ms: tuple[float, ...] = (0.0, 1.0, 1.0, 20.0)
        self.break_chance = 0.01
        """The chance that a connection breaks soon after a request has left."""
        self.unreachable: set[int] = set()
        """Nodes that no client reaches."""
        self.links: dict[Link, None] = {}
        self.breaks = 0
        self.late = 0
        """Requests that went on after their client had given them up, and requests that were sent twice."""

    def delay_s(self) -> float:
        """Draw how long bytes are on their way."""
        return self.rng.choice(self.delays_ms) * self.rng.random() / 1000


class Link(FakeTransport):
    """One connection, as the node's transport; the client's end has ``send``, ``hang_up`` and ``on_answer``."""

    def __init__(
        self,
        network: ClientNetwork,
        node_id: int,
        connection: KafkaConnection,
        on_answer: Callable[[int, bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__("10.0.0.1")
        self.node_id = node_id
        self._network = network
        self._loop = asyncio.get_running_loop()
        self._on_answer, self._on_end = on_answer, on_end
        self._up_s = self._down_s = 0.0
        """When the last bytes arrive in either direction."""
        self._held: deque[bytes] = deque()
        """Bytes that have arrived and that the node does not read."""
        self._answers = bytearray()
        self._is_silent = False
        """Whether bytes were lost, so that nothing behind them arrives."""
        self._is_forgotten = False
        """Whether the client has hung up."""
        self.protocol = connection
        network.links[self] = None
        connection.connection_made(self)

    # The client's end.

    def send(self, data: bytes) -> None:
        """Send bytes; sometimes they arrive in pieces."""
        rng = self._network.rng
        cuts = [0, len(data)]
        if rng.random() < PIECES_CHANCE:
            cuts[1:1] = sorted(rng.randrange(len(data)) for _ in range(2))
        for start, end in pairwise(cuts):
            if end > start:
                self._up_s = self._after(self._up_s)
                self._loop.call_at(self._up_s, self._arrive, data[start:end])

    def _after(self, last_s: float) -> float:
        return max(last_s + STEP_S, self._loop.time() + self._network.delay_s())

    def _arrive(self, piece: bytes) -> None:
        if self.is_aborted or self._is_lost():
            return
        if self.is_paused or self._held:
            self._held.append(piece)
        else:
            self._give(piece)

    def _give(self, piece: bytes) -> None:
        assert self.protocol is not None
        self.protocol.data_received(piece)

    def _is_lost(self) -> bool:
        self._is_silent = self._is_silent or self.node_id in self._network.unreachable
        return self._is_silent

    def hang_up(self, *, is_heard: bool) -> None:
        """Close the client's end. If the node does not hear it, what was sent still arrives there."""
        if self._is_forgotten:
            return
        self._is_forgotten = True
        if is_heard:
            self._is_silent = True
            self._loop.call_soon(self.end_node)
        else:
            self._network.late += 1
            self._loop.call_later(self._network.rng.uniform(1, 15), self.end_node)

    def break_down(self) -> None:
        """Lose all bytes that are on their way; either end hears of it at its own time, the client maybe not at all."""
        if self.is_aborted:
            return
        self._network.breaks += 1
        self._is_silent = True
        rng = self._network.rng
        self._loop.call_later(rng.choice((0.0, 0.0, 3.0)), self.end_node)
        if rng.random() < 0.8:
            self._loop.call_later(self._network.delay_s(), self._tell_end)

    # The node's end.

    def end_node(self, *, tells_client: bool = False) -> None:
        """End the connection at the node, whose tasks for it end."""
        self._network.links.pop(self, None)
        if not self.is_aborted:
            self.is_aborted = True
            assert self.protocol is not None
            self.protocol.connection_lost(None)
        if tells_client:
            self._loop.call_later(self._network.delay_s(), self._tell_end)

    def _tell_end(self) -> None:
        if not self._is_forgotten:
            self._is_forgotten = True
            self._on_end()

    def abort(self) -> None:
        """Close the connection; responses that have left arrive before the end does."""
        if not self.is_aborted:
            super().abort()
            self._network.links.pop(self, None)
            self._down_s = self._after(self._down_s)
            self._loop.call_at(self._down_s, self._tell_end)

    def resume_reading(self) -> None:
        """Read what has arrived meanwhile."""
        super().resume_reading()
        self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        while self._held and not self.is_paused and not self.is_aborted:
            self._give(self._held.popleft())

    def write(self, data: Any) -> None:
        """Send bytes to the client."""
        self._down_s = self._after(self._down_s)
        self._loop.call_at(self._down_s, self._answer, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        """Send pieces to the client."""
        self.write(b"".join(bytes(piece) for piece in list_of_data))

    def _answer(self, data: bytes) -> None:
        if self._is_forgotten or self._is_lost():
            return
        self._answers += data
        while len(self._answers) >= SIZE_BYTES:
            end = SIZE_BYTES + int.from_bytes(self._answers[:SIZE_BYTES], "big")
            if len(self._answers) < end:
                return
            body = bytes(self._answers[SIZE_BYTES:end])
            del self._answers[:end]
            self._on_answer(int.from_bytes(body[:ID_BYTES], "big"), body[ID_BYTES:])


class _Asked:
    """A request without a response."""

    __slots__ = ("answer", "key", "version")

    def __init__(self, key: int, version: int) -> None:
        self.key = key
        self.version = version
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class BrokerConnection:
    """A client's connection to one broker: responses come in the order of requests."""

    def __init__(self, network: ClientNetwork, node_id: int, connection: KafkaConnection) -> None:
        self._network = network
        self._asked: dict[int, _Asked] = {}
        self._next = 0
        self.is_open = True
        self._link = Link(network, node_id, connection, self._on_answer, self._on_end)

    async def ask(
        self, key: int, version: int, body: bytes, *, patience_s: float, may_linger: bool
    ) -> Any:
        """Send a request; return its response, decoded.

        ``may_linger``: if the client gives the request up, the node may get it all the same.

        Raises:
            ConnectionLostError: no response will come.
        """
        rng = self._network.rng
        self._next += 1
        asked = self._asked[self._next] = _Asked(key, version)
        self._link.send(request_frame(key, version, body, correlation_id=self._next))
        if rng.random() < self._network.break_chance:
            loop = asyncio.get_running_loop()
            loop.call_later(rng.choice((0.0, 0.005, 0.05)) * rng.random(), self._link.break_down)
        try:
            async with asyncio.timeout(patience_s):
                return await asked.answer
        except TimeoutError:
            self.close(is_heard=not may_linger or rng.random() < 0.5)
            raise ConnectionLostError("no response in time") from None

    def _on_answer(self, correlation_id: int, body: bytes) -> None:
        asked = self._asked.pop(correlation_id)
        if not asked.answer.done():
            asked.answer.set_result(decoded(asked.key, asked.version, body))

    def _on_end(self) -> None:
        self.is_open = False
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(ConnectionLostError("the connection broke"))
        self._asked.clear()

    def close(self, *, is_heard: bool) -> None:
        """Close the connection, and give up what was asked."""
        self._link.hang_up(is_heard=is_heard)
        self._on_end()
