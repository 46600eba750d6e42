"""The network of the simulation: one connection per pair, in order in each direction, lost as a whole.

Unlike TCP, it may also drop single messages of a connection (``drop``): the guards must not rely on more than they
need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft_meta.consensus.messages import Message, decode_message, encode_message

if TYPE_CHECKING:
    from tests.sim.raft.world import Peer, World

_FORWARDED = ("apply_command", "apply_command_response")


class Connection:
    """A connection. ``ends`` is (dialer, acceptor); ``last`` has the arrival time of each end's latest message."""

    def __init__(self, dialer: int, acceptor: int) -> None:
        self.ends = (dialer, acceptor)
        self.is_up = True
        self.last: dict[int, float] = {}


class Network:
    """Carries messages between peers; ``cuts`` has the end time of each cut (from, to)."""

    def __init__(self, world: World) -> None:
        rng = world.rng
        self.world = world
        self.latency_s = rng.choice((0.002, 0.01, 0.04, 0.1))
        self.tail_s = rng.choice((0.0, 0.02, 0.1))
        self.drop = rng.choice((0.0, 0.0, 0.0, 0.01, 0.05))
        self.cuts: dict[tuple[int, int], float] = {}
        self.connections: list[Connection] = []

    def heal(self) -> None:
        """End all cuts and drops; make delays short."""
        self.cuts.clear()
        self.latency_s, self.tail_s, self.drop = 0.005, 0.0, 0.0

    def delay(self) -> float:
        """Return a random delay of one direction, in s."""
        rng = self.world.rng
        tail = self.tail_s * rng.expovariate(1) if self.tail_s else 0.0
        return self.latency_s * (0.3 + rng.random()) + tail

    def live(self) -> list[Connection]:
        """Return the connections that no end has closed."""
        return [connection for connection in self.connections if connection.is_up]

    def transmit(self, connection: Connection, source: int, target: int, message: Message) -> None:
        """Send a message."""
        world = self.world
        if world.rng.random() < self.drop and message["type"] not in _FORWARDED:
            return
        if not connection.is_up:
            return
        arrives = max(
            world.now + self.delay(),
            connection.last.get(source, 0.0) + 1e-6,
            self.cuts.get((source, target), 0.0) + self.latency_s,
        )
        connection.last[source] = arrives
        incarnation = world.peers[target].incarnation
        data = encode_message(message)
        world.at(arrives - world.now, self._deliver, connection, source, target, data, incarnation)

    def _deliver(
        self, connection: Connection, source: int, target: int, data: bytes, incarnation: int
    ) -> None:
        world, peer = self.world, self.world.peers[target]
        if peer.paused_until > world.now:
            world.at(
                peer.paused_until - world.now,
                self._deliver,
                connection,
                source,
                target,
                data,
                incarnation,
            )
            return
        is_live = connection.is_up and peer.connections.get(source) is connection
        if not is_live or peer.incarnation != incarnation:
            return
        message = decode_message(data)
        world.trace(source, "->", target, message)
        peer.run(lambda core: core.receive(source, message))

    def sever(self, connection: Connection) -> None:
        """Break a connection; each end notices it at a different time."""
        connection.is_up = False
        for end, other in (connection.ends, connection.ends[::-1]):
            self.world.at(0.6 * self.world.rng.random() ** 2, self._notice, connection, end, other)

    def _notice(self, connection: Connection, end: int, other: int) -> None:
        peer = self.world.peers[end]
        if peer.connections.get(other) is connection:
            peer.unlink(other)
            if end == connection.ends[0]:
                self.redial(peer, other, 0.05 + 0.2 * self.world.rng.random())

    def redial(self, peer: Peer, other: int, delay: float) -> None:
        """Plan to dial again."""
        self.world.at(delay, self._dial, peer, peer.incarnation, other)

    def _dial(self, peer: Peer, incarnation: int, other: int) -> None:
        world = self.world
        if peer.incarnation != incarnation or peer.core is None or other in peer.connections:
            return
        acceptor = world.peers[other]
        pair = ((peer.id, other), (other, peer.id))
        if acceptor.core is None or max(self.cuts.get(way, 0.0) for way in pair) > world.now:
            self.redial(peer, other, 0.2)
            return
        connection = Connection(peer.id, other)
        for older in self.live():
            if set(older.ends) == set(connection.ends):
                self.sever(older)
        self.connections = [*self.live(), connection]
        world.at(self.delay(), self._accept, connection, peer, incarnation, acceptor.incarnation)

    def _accept(
        self, connection: Connection, dialer: Peer, incarnation: int, accepted_by: int
    ) -> None:
        acceptor = self.world.peers[connection.ends[1]]
        if connection.is_up and acceptor.incarnation == accepted_by and acceptor.core is not None:
            acceptor.link(dialer.id, connection)
        self.world.at(self.delay(), self._establish, connection, dialer, incarnation)

    def _establish(self, connection: Connection, dialer: Peer, incarnation: int) -> None:
        other = connection.ends[1]
        if dialer.incarnation != incarnation or dialer.core is None:
            connection.is_up = False
        elif connection.is_up and self.world.peers[other].connections.get(dialer.id) is connection:
            dialer.link(other, connection)
        else:
            self.redial(dialer, other, 0.1)
