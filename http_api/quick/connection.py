"""A connection whose requests may take the quick lane: aiohttp's handler, past which they go while it rests."""

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http import RawRequestMessage

from http_api.access.certificates import ClientCertificate, certificate_of
from http_api.quick.lane import QuickLane, QuickRequest
from http_api.quick.strangers import RestingRefusal, Strangers

if TYPE_CHECKING:
    from http_api.access.callers import Caller

_OF_AIOHTTP = frozenset(
    {
        "_close",
        "_force_close",
        "_keepalive_handle",
        "_messages",
        "_next_keepalive_close_time",
        "_waiter",
    }
)
_HAS_LANE = frozenset(web.RequestHandler.__slots__) >= _OF_AIOHTTP
"""Whether this aiohttp keeps its state where the lane looks; otherwise all requests go the usual way."""


class QuickConnection(web.RequestHandler):
    """One connection; ``open_lane`` belongs to making one.

    Invariant: ``_left`` bytes of the last request are still to come; -1: nobody knows, for good. At 0 the parser stands
    between two requests, so that the next bytes may go past it.
    """

    __slots__ = ("_held", "_lane", "_left", "_quick", "_strangers", "certificate", "last_caller")

    def open_lane(self, lane: QuickLane, strangers: Strangers) -> None:
        """Let requests take it, or be turned away."""
        self._lane = lane
        self._strangers = strangers
        self._left = 0 if _HAS_LANE else -1
        self._quick: QuickRequest | RestingRefusal | None = None
        """What is under way past aiohttp."""
        self._held = b""
        """Bytes that came while something was under way so."""
        self.certificate: ClientCertificate | None = None
        """What its client showed; that does not change while it lasts."""
        self.last_caller: tuple[str, Caller] | None = None
        """The header that came last, and who that was (``Rights``)."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there, and TLS has shaken hands with it."""
        super().connection_made(transport)
        self.certificate = certificate_of(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of a client: a request for the lane, or for aiohttp."""
        if self._quick is not None:
            self._hold(data)
            return
        if self._left or not data:
            if self._left > 0:
                self._left = max(self._left - len(data), -1)
            super().data_received(data)
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done() and self._is_at_rest():
            quick = self._lane.begin(self, data)
            if quick is not None:
                self._quick = None if quick.is_over else quick
                return
            self._quick = self._strangers.turn_away(self, data, self._loop.time())
            if self._quick is not None:
                return
        self._parse(data)

    def _is_at_rest(self) -> bool:
        return not (self._force_close or self._close or self._messages or self.writing_paused)

    def _parse(self, data: bytes) -> None:
        """Let aiohttp read what begins a request, and see where that ends."""
        count = len(self._messages)
        super().data_received(data)
        self._left = -1
        if len(self._messages) == count + 1:
            message = self._messages[-1][0]
            if isinstance(message, RawRequestMessage):
                self._left = self._lane.learn(data, message, self)

    def _hold(self, data: bytes) -> None:
        """A client that sends on before it was answered: it waits, and is not read from for so long."""
        self._held += data
        if self.transport is not None:
            self.transport.pause_reading()

    def finish_quick(self, answer: bytes) -> None:
        """A request of the lane is over."""
        self._quick = None
        if self.transport is None:
            return
        if answer:
            self.transport.write(answer)
        if self._close:
            self.transport.close()  # the server is stopping
            return
        self._next_keepalive_close_time = close_time = self._loop.time() + self.keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(close_time, self._process_keepalive)
        if self._held:
            held, self._held = self._held, b""
            self.transport.resume_reading()
            self.data_received(held)

    def _process_keepalive(self) -> None:
        """To aiohttp the connection rests while something is under way past it."""
        if self._quick is not None:
            self._keepalive_handle = None
            return
        super()._process_keepalive()

    async def shutdown(self, timeout: float | None = 15.0) -> None:  # noqa: ASYNC109 - aiohttp's
        """What is under way is answered first, as far as time allows."""
        if self._quick is not None:
            await asyncio.wait([self._quick.over()], timeout=timeout)
        await super().shutdown(timeout)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone; nobody waits for what is under way."""
        quick = self._quick
        super().connection_lost(exc)
        if quick is not None:
            quick.cancel()
