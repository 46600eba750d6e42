"""Receive the body of a request, within limits of size and time."""

import asyncio
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from aiohttp.http import HttpVersion11

from http_api.protocol.codings import unpack, window_of
from http_api.protocol.errors import BodyTimeoutError
from http_api.protocol.headers import joined
from http_api.serving.in_flight import InFlightPlace
from http_api.serving.shared import Shared
from milena.model.errors import MalformedRequestError, RequestTooLargeError
from milena.model.turns import LARGE_BYTES

_PACKED_AT_ONCE_BYTES = 4 << 10
"""The largest compressed body that is unpacked without a pause. Unpacked, it has 4 MB at most."""
_CHUNK_BYTES_MIN = 4 << 10
"""Pieces of a body of at least this size are kept, and joined at the end; smaller ones are joined at once."""


class RequestBody:
    """The body of one request. Its bytes are counted in ``InFlight`` until the dispatcher releases them."""

    __slots__ = ("_on_come", "_request", "_shared", "holder", "place", "reserved_bytes")

    def __init__(
        self, request: web.BaseRequest, shared: Shared, *, on_come: Callable[[], None]
    ) -> None:
        """Prepare to receive; ``on_come`` is called when a body or a piece has arrived, perhaps after a minute."""
        self._on_come = on_come
        self._request = request
        self._shared = shared
        self.holder = request.remote or ""
        """The caller for whom the request is counted in ``InFlight``; before authentication, the client's address."""
        self.place = InFlightPlace(shared.in_flight)
        """The request's entry in ``InFlight``; it is not counted while the server waits for the body."""
        self.reserved_bytes = 0
        """The bytes of the body that are counted in ``InFlight``."""

    async def whole(self) -> bytes:
        """Return the whole body, unpacked, within its bound.

        Raises:
            UnsupportedMediaTypeError: the content coding is not supported.
            RequestTooLargeError: the body is above the limit, by its length, or when it was received or unpacked.
            TooManyRequestsError: the bodies of other requests leave too little memory now.
            BodyTimeoutError: the body did not arrive in time.
        """
        window = self._window()
        body = await self._received()
        if window is not None:
            size = LARGE_BYTES if len(body) > _PACKED_AT_ONCE_BYTES else 0
            body = await self._shared.turns.run(unpack(body, window, self.account), size)
        self._on_come()
        return body

    async def pieces(self, is_due: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yield the body in pieces as it arrives; a compressed body in one piece.

        If the node is about to stop, the iterator ends early, as if the body were complete. The caller must limit how
        much it keeps. ``is_due`` returns True while the caller needs more bytes to complete a record.

        Raises:
            UnsupportedMediaTypeError, RequestTooLargeError, MalformedRequestError: the body cannot be read.
            BodyTimeoutError: ``is_due`` was True, and no more bytes arrived in time.
        """
        if self._window() is not None:
            yield await self.whole()
            return
        if "Expect" in self._request.headers:
            await self._send_continue()
        began = self._shared.streams.ended_count
        while self._shared.streams.ended_count == began:
            data = await self._piece(is_due=is_due())
            if not data:
                return
            self._on_come()
            yield data

    def _window(self) -> int | None:
        """Return zlib's window setting for the body; None if the body is not compressed."""
        return window_of(joined(self._request.headers, "Content-Encoding"))

    async def _piece(self, *, is_due: bool) -> bytes:
        connections, streams = self._shared.connections, self._shared.streams
        began = streams.ended_count
        wait_s = self._shared.in_flight.limits.body_wait_ms_max / 1000
        connections.rest(self._request.protocol)
        try:
            async with asyncio.timeout(wait_s if is_due else None) as end:
                with streams.ending_with(end):
                    return await self._request.content.readany()
        except TimeoutError:
            if streams.ended_count == began:
                raise BodyTimeoutError(
                    f"the rest of a record did not come within {wait_s:g} s"
                ) from None
            return b""
        except (web.RequestPayloadError, web.PayloadAccessError) as error:
            raise MalformedRequestError(f"the body cannot be read: {error}") from None
        finally:
            connections.work(self._request.protocol)

    async def _received(self) -> bytes:
        """Receive the body, still compressed."""
        request = self._request
        # Do not reserve memory by ``Content-Length``. Otherwise a few clients could announce large bodies, send
        # nothing, and keep others out.
        announced = request.content_length
        if announced:
            self._check_size(announced)
        content = request.content
        wait_s = self._shared.in_flight.limits.body_wait_ms_max / 1000
        try:
            if content.is_eof():
                body = content.read_nowait(-1)
                self.account(len(body))
                return body
            if "Expect" in request.headers:
                await self._send_continue()
            async with asyncio.timeout(wait_s):
                return await self._read_slowly()
        except TimeoutError:
            raise BodyTimeoutError(f"the body did not come within {wait_s:g} s") from None
        except (web.RequestPayloadError, web.PayloadAccessError) as error:
            raise MalformedRequestError(f"the body cannot be read: {error}") from None

    async def _read_slowly(self) -> bytes:
        """Receive the body while the client sends it.

        Meanwhile the request does not count as in flight, and its connection counts as idle. Otherwise clients that
        never finish a body could use up both limits.
        """
        connections = self._shared.connections
        with self.place.aside(is_asked_again=True):
            connections.rest(self._request.protocol)
            try:
                return await self._read_chunks()
            finally:
                connections.work(self._request.protocol)

    async def _read_chunks(self) -> bytes:
        content = self._request.content
        chunks: list[bytes] = []
        # Join small chunks at once. Thousands of small objects would fragment the heap when they are freed.
        small = bytearray()
        size = 0
        while chunk := await content.readany():
            size += len(chunk)
            self.account(size)
            if len(chunk) < _CHUNK_BYTES_MIN:
                small += chunk
                continue
            if small:
                chunks.append(bytes(small))
                small.clear()
            chunks.append(chunk)
        if small:
            chunks.append(bytes(small))
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _check_size(self, size: int) -> None:
        most = self._shared.in_flight.limits.request_bytes_max
        if size > most:
            raise RequestTooLargeError(
                f"the body has {size} bytes or more; at most {most} are taken in one request"
            )

    def account(self, size: int) -> None:
        """Count the bytes of the body so far, received or unpacked, in ``InFlight``."""
        self._check_size(size)
        if size > self.reserved_bytes:
            self._shared.in_flight.reserve(self.holder, size - self.reserved_bytes)
            self.reserved_bytes = size

    async def _send_continue(self) -> None:
        """Send ``100 Continue``, for which curl waits up to a second before it sends a body."""
        request = self._request
        if (
            request.version == HttpVersion11
            and self._request.headers.get("Expect", "").lower() == "100-continue"
        ):
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            # aiohttp counts these bytes as the start of the response. Reset the count.
            request.writer.output_size = 0
