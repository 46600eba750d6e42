"""A connection whose requests may take the quick lane: aiohttp's handler, past which they go while it rests."""

import asyncio
from typing import TYPE_CHECKING

from http_api.access.certificates import ClientCertificate, certificate_of
from http_api.quick.lane import QuickLane, QuickRequest
from http_api.quick.parsed_head import ParsedHead
from http_api.quick.separate_requests import START, SeparateRequests
from http_api.quick.strangers import RestingRefusal, Strangers

if TYPE_CHECKING:
    from http_api.access.callers import Caller


class QuickConnection(SeparateRequests):
    """One connection; ``open_lane`` belongs to making one."""

    __slots__ = ("_is_of_proxy", "_lane", "_quick", "_strangers", "certificate", "last_caller")

    def open_lane(self, lane: QuickLane, strangers: Strangers) -> None:
        """Let requests take it, or be turned away."""
        self._lane = lane
        self._strangers = strangers
        self._is_of_proxy = False
        self._quick: QuickRequest | RestingRefusal | None = None
        """What is under way past aiohttp."""
        self.certificate: ClientCertificate | None = None
        """What its client showed; that does not change while it lasts."""
        self.last_caller: tuple[str, Caller] | None = None
        """The header that came last, and who that was (``Rights``)."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there, and TLS has shaken hands with it."""
        super().connection_made(transport)
        self.certificate = certificate_of(transport)
        # Its requests have addresses of their own, which stand in their heads.
        self._is_of_proxy = self._lane.is_of_proxy(self.peername)

    def data_received(self, data: bytes) -> None:
        """Bytes of a client: a request for the lane, or for aiohttp."""
        try:
            if not data:
                self.resume()
            elif self._quick is not None or self._held:
                self._hold(data)
            elif self._left != START or not self._goes_past(data):
                self.feed(data)
        except Exception as error:  # noqa: BLE001 - one connection ends, and not the node
            self._on_unexpected(error)

    def _on_unexpected(self, error: BaseException) -> None:
        """Answer with the error if no request is under way, and close: where the next request begins is not known."""
        answer = self._lane.refuse(error)
        waiter = self._waiter
        rests = waiter is not None and not waiter.done() and self._is_at_rest()
        if self.transport is not None:
            if rests:
                self.transport.write(answer)
            self.transport.close()

    def _goes_past(self, data: bytes) -> bool:
        """Whether a request was taken, or turned away, without aiohttp."""
        waiter = self._waiter
        if waiter is None or waiter.done() or not self._is_at_rest() or self._is_of_proxy:
            return False
        quick = self._lane.begin(self, data)
        if quick is not None:
            self._quick = None if quick.is_over else quick
            return True
        self._quick = self._strangers.turn_away(self, data, self._loop.time())
        return self._quick is not None

    def _is_at_rest(self) -> bool:
        return not (self._force_close or self._close or self._messages or self.writing_paused)

    def on_head(self, head: bytes, message: ParsedHead, body_bytes: int, behind: int) -> None:
        """Remember a head whose request came whole and alone."""
        if behind == body_bytes and not self._is_of_proxy:
            self._lane.learn(head, message, body_bytes, self)

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
