"""Answers that their clients do not take: for how long they are kept, and how much of them altogether.

What a client has not read lies in its connection, and behind it waits whoever makes the rest of the answer. Who takes
nothing at all for too long is given up, and when more lies there than may the one that waited longest makes room: its
connection is closed, and with it ends the request.
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
"""Within the time that a client has."""
_ACKED_AT = 120
"""Where ``tcp_info`` has the number of bytes that the other end has taken, since Linux 4.1."""
_TCP_INFO_BYTES = 192


class Receiver(Hashable, Protocol):
    """A connection whose client does not keep up."""

    def unsent_bytes(self) -> int:
        """Bytes that wait in the connection."""

    def taken_bytes(self) -> int:
        """Bytes that the client has taken so far, or any number that changes when it takes something."""

    def give_up(self) -> None:
        """Close it at once."""


@dataclass(slots=True)
class _Wait:
    """``since_s``: when the client last took something, as far as was looked."""

    since_s: float
    taken_bytes: int
    unsent_bytes: int


class UnsentAnswers:
    """All connections that wait for their clients. Belongs to one event loop.

    Invariants:
        A timer runs while there are some. ``_bytes`` is the sum of what was last seen of each.
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
        """Watch a connection whose client does not keep up."""
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
        """Watch it no more: its client keeps up again, or is gone."""
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
        """See who has taken something since."""
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
            # At powers of two: a flood of them must not become a flood of lines.
            _log.warning(
                "clients that do not take their answers are given up count=%d waited_s=%.1f",
                self.given_up_count,
                waited_s,
            )
        receiver.give_up()


def _now() -> float:
    return asyncio.get_running_loop().time()


def taken_bytes(transport: asyncio.WriteTransport) -> int:
    """See ``Receiver``. What the kernel took over says little: it holds megabytes of a client that reads slowly."""
    connected = transport.get_extra_info("socket")
    try:
        info: bytes = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        taken: int = struct.unpack_from("=Q", info, _ACKED_AT)[0]
    except (AttributeError, OSError, struct.error):
        return -transport.get_write_buffer_size()
    return taken


def reset_when_closed(transport: asyncio.WriteTransport) -> None:
    """Else the kernel goes on offering what it took over, for minutes."""
    connected = transport.get_extra_info("socket")
    with suppress(AttributeError, OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
