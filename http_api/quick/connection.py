"""A connection whose requests may take the quick lane: small requests that bypass aiohttp's request handling."""

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
    """One connection. The creator calls ``open_lane`` before it uses the connection."""

    __slots__ = ("_is_of_proxy", "_lane", "_quick", "_strangers", "certificate", "last_caller")

    def open_lane(self, lane: QuickLane, strangers: Strangers) -> None:
        """Set the quick lane, which may take requests, and the ``Strangers``, which may refuse them."""
        self._lane = lane
        self._strangers = strangers
        self._is_of_proxy = False
        self._quick: QuickRequest | RestingRefusal | None = None
        """The request or delayed refusal in progress that bypasses aiohttp; None without one."""
        self.certificate: ClientCertificate | None = None
        """The client's certificate. It does not change during the connection."""
        self.last_caller: tuple[str, Caller] | None = None
        """The last ``Authorization`` header of the connection, and its caller (see ``Rights``)."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called when a client has connected, after the handshake if the connection uses TLS."""
        super().connection_made(transport)
        self.certificate = certificate_of(transport)
        # A proxy's connection carries requests of many clients, whose addresses are in headers. The quick lane does not
        # read these, so ``_goes_past`` leaves such requests to aiohttp.
        self._is_of_proxy = self._lane.is_of_proxy(self.peername)

    def data_received(self, data: bytes) -> None:
        """Pass a client's bytes to the lane or to aiohttp."""
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
        """Send the error if no request is in progress. Then close, because the start of the next request is unknown."""
        answer = self._lane.refuse(error)
        waiter = self._waiter
        rests = waiter is not None and not waiter.done() and self._is_at_rest()
        if self.transport is not None:
            if rests:
                self.transport.write(answer)
            self.transport.close()

    def _goes_past(self, data: bytes) -> bool:
        """Return whether the lane took the request, or ``Strangers`` refused it, without aiohttp."""
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
        """Let the quick lane remember a head whose request arrived completely, without further bytes."""
        if behind == body_bytes and not self._is_of_proxy:
            self._lane.learn(head, message, body_bytes, self)

    def _hold(self, data: bytes) -> None:
        """Keep bytes that a client sends before it has the response, and stop reading until the response is sent."""
        self._held += data
        if self.transport is not None:
            self.transport.pause_reading()

    def finish_quick(self, answer: bytes, large: bytes = b"") -> None:
        """Send the response of a request that bypassed aiohttp, and continue with held bytes.

        ``large`` is the rest of the response if a copy behind ``answer`` would cost more than a second buffer.
        """
        self._quick = None
        if self.transport is None:
            return
        if large:
            self.transport.writelines((answer, large))
        elif answer:
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
        """Keep the connection open while a request bypasses aiohttp; aiohttp would close the connection as idle."""
        if self._quick is not None:
            self._keepalive_handle = None
            return
        super()._process_keepalive()

    async def shutdown(self, timeout: float | None = 15.0) -> None:  # noqa: ASYNC109 - aiohttp's
        """Wait for the response in progress, as far as ``timeout`` (seconds) allows, then shut down."""
        if self._quick is not None:
            await asyncio.wait([self._quick.over()], timeout=timeout)
        await super().shutdown(timeout)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called when the connection is closed: cancel the request in progress."""
        quick = self._quick
        super().connection_lost(exc)
        if quick is not None:
            quick.cancel()
