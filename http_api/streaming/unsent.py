"""Responses that their clients do not read: how long they are kept, and how many bytes of them.

Bytes that a client has not read stay in its connection's buffer, and the code that makes the rest of the response
waits. A client that reads nothing for too long loses its connection. If all buffers together exceed their bound, the
connection that has waited longest is closed. The request ends with its connection.
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
"""The number of checks within a client's time."""
_ACKED_AT = 120
"""The position in ``tcp_info`` of the number of bytes that the other end has acknowledged, since Linux 4.1."""
_TCP_INFO_BYTES = 192


class Receiver(Hashable, Protocol):
    """A connection whose client is slow."""

    def unsent_bytes(self) -> int:
        """Return the number of bytes that wait in the connection."""

    def taken_bytes(self) -> int:
        """Return the number of bytes that the client has read, or any number that changes when it reads."""

    def give_up(self) -> None:
        """Close the connection at once."""


@dataclass(slots=True)
class _Wait:
    """``since_s``: when a check last saw that the client had read."""

    since_s: float
    taken_bytes: int
    unsent_bytes: int


class UnsentAnswers:
    """All connections that wait for their clients. Belongs to one event loop.

    Invariants:
        A timer runs while there are any. ``_bytes`` is the sum of the sizes at the last checks.
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
        """Stop watching the connection: its client keeps up again, or is gone."""
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
            # At powers of two: a flood of closed connections must not become a flood of lines.
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

    The bytes that the kernel accepted tell little: it buffers megabytes for a slow client.
    """
    connected = transport.get_extra_info("socket")
    try:
        info: bytes = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        taken: int = struct.unpack_from("=Q", info, _ACKED_AT)[0]
    except (AttributeError, OSError, struct.error):
        return -transport.get_write_buffer_size()
    return taken


def reset_when_closed(transport: asyncio.WriteTransport) -> None:
    """Let the close reset the connection. Otherwise the kernel keeps sending its buffer for minutes."""
    connected = transport.get_extra_info("socket")
    with suppress(AttributeError, OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
