"""Limits for clients that do not read their responses: of time, and of bytes in send buffers.

Bytes that a client has not read stay in the send buffer of its connection, and the code that produces the rest of the
response waits. If a client reads nothing for too long, its connection is closed. If all send buffers together exceed
their limit, the connection that has waited longest is closed. The request ends with its connection.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

_log = logging.getLogger("http_api")

LOOKS = 4
"""Number of checks within the time in which a client must read something."""
_ACKED_AT = 120
"""The position in ``tcp_info`` of the number of bytes that the other end has acknowledged, since Linux 4.1."""
_TCP_INFO_BYTES = 192


class Receiver(Hashable, Protocol):
    """A connection whose client is slow."""

    def unsent_bytes(self) -> int:
        """Return the number of bytes in the send buffer."""

    def taken_bytes(self) -> int:
        """Return the number of bytes that the client has read, or another number that changes when it reads."""

    def give_up(self) -> None:
        """Close the connection at once."""


@dataclass(slots=True)
class _Wait:
    """The state of a watched connection. ``since_s`` is the last time at which the client was seen to have read."""

    since_s: float
    taken_bytes: int
    unsent_bytes: int


class UnsentAnswers:
    """All connections that wait for their clients. Used on one event loop.

    Invariants:
        - a timer runs while there are such connections;
        - ``_bytes`` is the sum of their send buffers at the last checks.
    """

    def __init__(self, *, bytes_max: int, wait_ms_max: int) -> None:
        self._bytes_max = bytes_max
        self._wait_s = wait_ms_max / 1000
        self._waits: dict[Receiver, _Wait] = {}
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self.given_up_count = 0

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, receiver: Receiver) -> None:
        """Watch a connection whose client is slow."""
        wait = _Wait(_now(), receiver.taken_bytes(), receiver.unsent_bytes())
        self._waits[receiver] = wait
        self._bytes += wait.unsent_bytes
        if self._timer is None:
            self._wind()
        if self._bytes > self._bytes_max:
            self._look()
            while self._bytes > self._bytes_max and len(self._waits) > 1:
                self._give_up(min(self._waits, key=lambda one: self._waits[one].since_s))

    def discard(self, receiver: Receiver) -> None:
        """Stop watching a connection, because its client has read enough, or has disconnected."""
        wait = self._waits.pop(receiver, None)
        if wait is not None:
            self._bytes -= wait.unsent_bytes
        if not self._waits and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wind(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._wait_s / LOOKS, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._look()
        late_s = _now() - self._wait_s
        for receiver in [one for one, wait in self._waits.items() if wait.since_s <= late_s]:
            self._give_up(receiver)
        if self._waits:
            self._wind()

    def _look(self) -> None:
        """Check which clients have read something."""
        now_s = _now()
        for receiver, wait in self._waits.items():
            taken, unsent = receiver.taken_bytes(), receiver.unsent_bytes()
            if taken != wait.taken_bytes:
                wait.since_s, wait.taken_bytes = now_s, taken
            self._bytes += unsent - wait.unsent_bytes
            wait.unsent_bytes = unsent

    def _give_up(self, receiver: Receiver) -> None:
        waited_s = _now() - self._waits[receiver].since_s
        self.discard(receiver)
        self.given_up_count += 1
        if not self.given_up_count & (self.given_up_count - 1):
            # Log only when the count reaches a power of two. Otherwise many connections would mean as many lines.
            _log.warning(
                "clients that do not take their answers are given up count=%d waited_s=%.1f",
                self.given_up_count,
                waited_s,
            )
        receiver.give_up()


def _now() -> float:
    return asyncio.get_running_loop().time()


def taken_bytes(transport: asyncio.WriteTransport) -> int:
    """Return the bytes that the client has acknowledged; see ``Receiver``.

    The number of bytes that the kernel has accepted would not do, because it buffers megabytes for a slow client.
    """
    connected = transport.get_extra_info("socket")
    try:
        info: bytes = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        taken: int = struct.unpack_from("=Q", info, _ACKED_AT)[0]
    except (AttributeError, OSError, struct.error):
        return -transport.get_write_buffer_size()
    return taken


def reset_when_closed(transport: asyncio.WriteTransport) -> None:
    """Make a later close reset the connection. Otherwise the kernel would try to send its buffer for minutes."""
    connected = transport.get_extra_info("socket")
    with suppress(AttributeError, OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
