"""The network between simulated machines: byte streams that can be late, stuck, cut, broken and tampered with.

Production code's calls of ``socket.socket`` and of a loop's socket methods come here, so frames, handshakes and links
are real. A stream keeps exactly the promises of TCP. Bytes arrive in order or not at all. A cut is noticed only when
the kernel gives up on unacknowledged bytes. A killed process resets its connections; a machine without power sends
nothing. A tampering middlebox can also drop, duplicate, swap or change pieces of a stream, which TCP would not allow:
the frames' own checks must detect that.
"""

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from math import log
from typing import TYPE_CHECKING, Any

from tests.sim.cluster.threads import Process, Scheduler, SimHandle, SimLoop

if TYPE_CHECKING:
    from random import Random

Address = tuple[str, int]

GIVE_UP_S = 5.0
"""The time in s after which the kernel closes a connection with unacknowledged bytes (TCP_USER_TIMEOUT)."""
KEEPALIVE_S = 5.0
"""The time in s after which an idle dead connection is detected (TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT)."""
SYN_RETRY_S = 1.0
RETRANSMIT_S = 0.2
MACHINE_PORT = 7082


class Wires:
    """The network. Machines are named by host; those in ``down`` have no power."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.rng: Random = scheduler.rng
        self.latency_ms = 1.0
        self.tail_chance = 0.0
        self.tail_ms = 50.0
        self.tamper_chance = 0.0
        self.tampered = 0
        self.cuts: set[tuple[str, str]] = set()
        """Pairs (from, to) whose packets do not arrive."""
        self.down: set[str] = set()
        self.listeners: dict[Address, SimSocket] = {}
        self.ends: dict[End, None] = {}
        self.ground = Process(scheduler, "network").loop()
        self.context = copy_context()

    def delay_s(self) -> float:
        """Return the random delay of one piece in one direction, in s."""
        random = self.rng.random
        delay_ms = -self.latency_ms * log(1.0 - random())
        if self.tail_chance and random() < self.tail_chance:
            delay_ms += random() * self.tail_ms
        return delay_ms / 1000

    def is_cut(self, source: str, target: str) -> bool:
        """Return whether no packet passes in this direction."""
        cuts, down = self.cuts, self.down
        return bool(
            (cuts and (source, target) in cuts) or (down and (source in down or target in down))
        )

    def heal(self) -> None:
        """Undo all cuts; stuck bytes arrive."""
        self.cuts.clear()
        self.flush()

    def flush(self) -> None:
        """Send stuck bytes again whose way is free."""
        for end in list(self.ends):
            end.retransmit()

    def clear(self) -> None:
        """Drop all connections."""
        self.listeners.clear()
        self.ends.clear()

    def later(self, delay_s: float, action: Callable[..., None], *args: object) -> None:
        """Run an action of the network itself later."""
        scheduler = self.scheduler
        scheduler.at(scheduler.now + delay_s, self.ground, SimHandle(action, args, self.context))

    def kill(self, process: Process) -> None:
        """Close the sockets of a process. Peers are told only if the machine has power."""
        for address in [a for a, s in self.listeners.items() if s.process is process]:
            del self.listeners[address]
        for end in [end for end in self.ends if end.process is process]:
            end.die()

    def dial(self, dialler: "SimSocket", address: Address, done: "asyncio.Future[None]") -> None:
        """Send a SYN repeatedly, until it is answered or the dialler gives up."""
        if done.done() or dialler.process.is_dead:
            return
        source, target = dialler.host, address[0]
        if self.is_cut(source, target) or self.is_cut(target, source):
            self.later(SYN_RETRY_S, self.dial, dialler, address, done)
            return
        self.later(self.delay_s() + self.delay_s(), self._answer, dialler, address, done)

    def _answer(self, dialler: "SimSocket", address: Address, done: "asyncio.Future[None]") -> None:
        if done.done() or dialler.process.is_dead:
            return
        source, target = dialler.host, address[0]
        if self.is_cut(source, target) or self.is_cut(target, source):
            self.later(SYN_RETRY_S, self.dial, dialler, address, done)
            return
        listener = self.listeners.get(address)
        loop = done.get_loop()
        if listener is None or listener.process.is_dead:
            refusal = ConnectionRefusedError(errno.ECONNREFUSED, f"{address} refused")
            loop.call_soon(_fail, done, refusal)
            return
        near, far = End(self, dialler.process, source), End(self, listener.process, target)
        near.other, far.other = far, near
        self.ends[near] = self.ends[far] = None
        dialler.end = near
        listener.take(far)
        loop.call_soon(_succeed, done)


def _succeed(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)


def _fail(done: "asyncio.Future[Any]", error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)


class End:
    """One end of a connection: received bytes that were not read, and sent bytes that are stuck."""

    def __init__(self, wires: Wires, process: Process, host: str) -> None:
        self.wires = wires
        self.process = process
        self.host = host
        self.other: End
        self.received = bytearray()
        self.is_finished = False
        """Whether the other end closed, and all bytes that it sent before have arrived."""
        self.is_broken = False
        self.is_closed = False
        self.stuck: deque[bytes | None] = deque()
        self.on_bytes: Callable[[], None] = lambda: None
        self._last = 0.0
        self._stuck_at: float | None = None

    @property
    def waiting_bytes(self) -> int:
        """Return the number of bytes that the network has not taken."""
        return sum(len(piece) for piece in self.stuck if piece) if self.stuck else 0

    def send(self, piece: bytes | None) -> None:
        """Send bytes; None closes the stream after the earlier bytes."""
        if self.is_broken or self.is_closed or self.process.is_dead:
            return
        if piece is None:
            self.is_closed = True
        if self.stuck or self.wires.is_cut(self.host, self.other.host):
            self._hold(piece)
        else:
            self._transmit(piece)

    def _hold(self, piece: bytes | None) -> None:
        if self.is_closed and self not in self.wires.ends:
            # The sender closed behind a cut, and no process is left to repeat that. A later keepalive probe breaks the
            # connection.
            self.wires.later(KEEPALIVE_S, self.other.break_off)
            return
        self.stuck.append(piece)
        if self._stuck_at is None:
            self._stuck_at = self.wires.scheduler.now
            self.wires.later(GIVE_UP_S, self._give_up, self._stuck_at)

    def _give_up(self, since: float) -> None:
        if self._stuck_at == since and self.stuck:
            self.break_off()

    def retransmit(self) -> None:
        """Send all stuck bytes soon, because the way is free again."""
        if self.stuck and not self.wires.is_cut(self.host, self.other.host):
            self.wires.later(self.wires.rng.uniform(0, RETRANSMIT_S), self._resend)

    def _resend(self) -> None:
        if self.wires.is_cut(self.host, self.other.host):
            return
        pieces, self.stuck = self.stuck, deque()
        self._stuck_at = None
        for piece in pieces:
            self._transmit(piece)

    def _transmit(self, piece: bytes | None) -> None:
        wires = self.wires
        if piece and wires.tamper_chance and wires.rng.random() < wires.tamper_chance:
            wires.tampered += 1
            for part in _tampered(piece, wires.rng):
                self._transmit_whole(part)
        else:
            self._transmit_whole(piece)

    def _transmit_whole(self, piece: bytes | None) -> None:
        wires = self.wires
        scheduler = wires.scheduler
        arrives = scheduler.now + wires.delay_s()
        # Keep the order of sending.
        if arrives < self._last + 1e-6:
            arrives = self._last + 1e-6
        self._last = arrives
        scheduler.at(arrives, wires.ground, SimHandle(self._arrive, (piece,), wires.context))

    def _arrive(self, piece: bytes | None) -> None:
        """Deliver bytes at the other end."""
        if self.wires.is_cut(self.host, self.other.host):
            self._hold(piece)
            return
        if self.stuck:
            # Later bytes must not overtake stuck ones.
            self.stuck.append(piece)
            return
        self.other.take(piece)

    def take(self, piece: bytes | None) -> None:
        """Take bytes, or the close, from the other end."""
        if self.process.is_dead or self.is_closed:
            if piece is not None:
                self.other.break_soon()
            return
        if piece is None:
            self.is_finished = True
        else:
            self.received += piece
        self.on_bytes()

    def break_soon(self) -> None:
        """Let a reset arrive soon."""
        if not self.is_broken:
            self.wires.later(self.wires.delay_s(), self._reset)

    def _reset(self) -> None:
        if self.wires.is_cut(self.other.host, self.host):
            self.wires.later(KEEPALIVE_S, self.break_off)
        else:
            self.break_off()

    def break_off(self) -> None:
        """Break the connection, as the kernel does."""
        if not self.is_broken and not self.process.is_dead:
            self.is_broken = True
            self.stuck.clear()
            # The other end may get no reset, and may send nothing itself. A keepalive probe then breaks its connection.
            self.wires.later(KEEPALIVE_S, self.other.break_off)
            self.on_bytes()
        self.wires.ends.pop(self, None)

    def abort(self) -> None:
        """Close at once; stuck bytes are lost."""
        self.wires.ends.pop(self, None)
        if not self.is_closed and not self.is_broken:
            self.stuck.clear()
            self.send(None)
        self.is_closed = True

    def die(self) -> None:
        """End the connection of an ended process."""
        self.stuck.clear()
        self.wires.ends.pop(self, None)
        if self.is_closed:
            return
        if self.host in self.wires.down:
            # No packet tells the other end. If it sends nothing, a keepalive probe fails, because the address is dead
            # or new.
            self.wires.later(KEEPALIVE_S, self.other.break_off)
        else:
            self.other.break_soon()


def _tampered(piece: bytes, rng: "Random") -> list[bytes | None]:
    kind = rng.choice(("drop", "double", "flip", "swap", "cut"))
    half = rng.randrange(len(piece))
    match kind:
        case "drop":
            return []
        case "double":
            return [piece, piece]
        case "swap":
            return [piece[half:], piece[:half]]
        case "cut":
            return [piece[:half]]
        case _:
            changed = bytearray(piece)
            changed[half] ^= 1 << rng.randrange(8)
            return [bytes(changed)]


class SimSocket:
    """Replaces ``socket.socket``."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM

    def __init__(self, wires: Wires, process: Process, host: str) -> None:
        self.wires = wires
        self.process = process
        self.host = host
        self.end: End | None = None
        self.address: Address = (host, 0)
        self.backlog: deque[SimSocket] = deque()
        self.on_readable: Callable[[], None] | None = None
        self.loop: SimLoop | None = None
        self.is_closed = False

    def setblocking(self, flag: bool) -> None:
        """Do nothing: simulated sockets never block."""

    def setsockopt(self, *options: object) -> None:
        """Do nothing: the simulated network always behaves as the options request."""

    def bind(self, address: Address) -> None:
        self.address = address

    def listen(self, backlog: int = 0) -> None:
        del backlog
        self.wires.listeners[self.address] = self

    def getsockname(self) -> Address:
        return self.address

    def getpeername(self) -> Address:
        assert self.end is not None
        return (self.end.other.host, MACHINE_PORT)

    def take(self, end: End) -> None:
        """Add an incoming connection."""
        accepted = SimSocket(self.wires, self.process, self.host)
        accepted.end = end
        self.backlog.append(accepted)
        self.notify()

    def notify(self) -> None:
        """Tell the owner that there is a connection to accept."""
        if self.on_readable is not None and self.loop is not None:
            self.loop.call_soon(self._call_owner)

    def _call_owner(self) -> None:
        if self.on_readable is not None and self.backlog:
            self.on_readable()

    def accept(self) -> "tuple[SimSocket, Address]":
        if not self.backlog:
            raise BlockingIOError(errno.EAGAIN, "nobody dialled")
        accepted = self.backlog.popleft()
        return accepted, accepted.getpeername()

    def close(self) -> None:
        if self.wires.listeners.get(self.address) is self:
            del self.wires.listeners[self.address]
        if self.end is not None and not self.is_closed:
            self.end.abort()
        self.is_closed = True

    def detach(self) -> End:
        """Give the connection to a transport."""
        end, self.end = self.end, None
        assert end is not None, "a socket that is not connected"
        return end


class SimTransport(asyncio.Transport):
    """A transport over a simulated connection."""

    def __init__(self, loop: "NetLoop", end: End, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._end = end
        self._protocol = protocol
        self._high = 1 << 16
        self._is_reading = True
        self._is_closing = False
        self._is_full = False
        self._is_scheduled = False
        end.on_bytes = self._wake
        loop.call_soon(protocol.connection_made, self)
        self._wake()

    def _wake(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_scheduled = False
        end = self._end
        if self._is_closing:
            return
        if end.is_broken:
            self._lose(ConnectionResetError(errno.ECONNRESET, "connection reset"))
            return
        if self._is_full and end.waiting_bytes <= self._high:
            self._is_full = False
            self._protocol.resume_writing()
        if end.received and self._is_reading:
            data = bytes(end.received)
            end.received.clear()
            self._protocol.data_received(data)
        if end.is_finished and self._is_reading and not self._is_closing:
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end.abort()
            self._loop.call_soon(self._protocol.connection_lost, error)

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self._end.send(bytes(data))
            if not self._is_full and self._end.waiting_bytes > self._high:
                self._is_full = True
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self._end.waiting_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del low
        self._high = (1 << 16) if high is None else high

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._wake()

    def abort(self) -> None:
        self._lose(None)

    def close(self) -> None:
        """Close; stuck bytes may still be sent."""
        if not self._is_closing:
            self._is_closing = True
            self._end.send(None)
            self._loop.call_soon(self._protocol.connection_lost, None)


class NetLoop(SimLoop):
    """A thread of a process with a network."""

    async def getaddrinfo(self, host: str, port: int, **named: Any) -> list[Any]:  # type: ignore[override]
        del named
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        fd.loop = self
        fd.on_readable = lambda: callback(*args)
        fd.notify()

    def remove_reader(self, fd: Any) -> bool:
        fd.on_readable = None
        return True

    async def sock_connect(self, sock: Any, address: Any) -> None:
        done = self.create_future()
        sock.wires.dial(sock, tuple(address), done)
        await done

    async def sock_sendall(self, sock: Any, data: Any) -> None:
        if sock.end is None or sock.end.is_broken:
            raise ConnectionResetError(errno.ECONNRESET, "connection reset")
        sock.end.send(bytes(data))

    async def sock_recv(self, sock: Any, nbytes: int) -> bytes:
        end = sock.end
        while not end.received and not end.is_finished:
            if end.is_broken or sock.is_closed:
                raise ConnectionResetError(errno.ECONNRESET, "connection reset")
            waiting = self.create_future()
            end.on_bytes = lambda waiting=waiting: self.call_soon(_succeed, waiting)
            await waiting
        end.on_bytes = lambda: None
        data = bytes(end.received[:nbytes])
        del end.received[:nbytes]
        return data

    async def create_connection(self, protocol_factory: Any, *, sock: Any, **named: Any) -> Any:  # type: ignore[override]
        del named
        return self._connected(protocol_factory, sock)

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **named: Any) -> Any:
        del named
        return self._connected(protocol_factory, sock)

    def _connected(self, protocol_factory: Any, sock: SimSocket) -> tuple[SimTransport, Any]:
        if sock.end is None:
            raise OSError(errno.EBADF, "the socket is closed")
        protocol = protocol_factory()
        return SimTransport(self, sock.detach(), protocol), protocol
