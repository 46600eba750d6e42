"""One request on its way through: what handlers get, and the bounds on what it may take up."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.http import HttpVersion11

from http_api.errors import BodyTimeoutError
from http_api.media import check_json_type
from http_api.ports import ApiLimits, Ports
from http_api.request_metrics import RequestMetrics
from http_api.schemas import parse_json, parse_query
from storage.errors import MalformedRequestError, RequestTooLargeError, TooManyRequestsError


@dataclass(slots=True)
class InFlight:
    """Requests under way and the bytes of their bodies, against their bounds."""

    limits: ApiLimits
    request_count: int = 0
    body_bytes: int = 0

    def admit(self) -> None:
        """Count one more request.

        Raises:
            TooManyRequestsError: there are as many as there may be.
        """
        if self.request_count >= self.limits.requests_in_flight_max:
            raise TooManyRequestsError(
                f"{self.request_count} requests are in flight; try again later"
            )
        self.request_count += 1

    def reserve(self, byte_count: int) -> None:
        """Count bytes of a body that is about to be read.

        Raises:
            TooManyRequestsError: together with the bodies under way it would be too much.
        """
        if self.body_bytes + byte_count > self.limits.bytes_in_flight_max:
            raise TooManyRequestsError(
                f"{self.body_bytes} bytes of requests are in flight; try again later"
            )
        self.body_bytes += byte_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all calls of a server have in common."""

    ports: Ports
    in_flight: InFlight
    request_metrics: RequestMetrics


@dataclass(slots=True)
class Call:
    """One request. Handlers read it, call one port and return an answer."""

    request: web.BaseRequest
    shared: Shared
    request_id: str
    names: Mapping[str, str] = field(default_factory=dict)
    """Percent-decoded names of the path."""
    reserved_bytes: int = 0
    """What the body takes up in ``InFlight``; the dispatcher gives it back."""

    @property
    def ports(self) -> Ports:
        """The node."""
        return self.shared.ports

    @property
    def raw_query(self) -> str:
        """The query string as it came."""
        return self.request.rel_url.raw_query_string

    def query(self) -> dict[str, str]:
        """The parsed query string."""
        raw = self.raw_query
        return parse_query(raw) if raw else {}

    def header(self, name: str) -> str:
        """A header; several of one name as one list; empty when absent."""
        values = self.request.headers.getall(name, None)
        if values is None:
            return ""
        return values[0] if len(values) == 1 else ", ".join(values)

    async def json_body(self) -> object:
        """The body's JSON.

        Raises:
            UnsupportedMediaTypeError, RequestTooLargeError, MalformedRequestError: it cannot be read as such.
        """
        check_json_type(self.header("Content-Type"))
        return parse_json(await self.body())

    async def body(self) -> bytes:
        """The whole body, within its bound.

        Raises:
            RequestTooLargeError: above the bound, as announced or as it came (compressed bodies grow).
            TooManyRequestsError: other bodies leave no room for it now.
            BodyTimeoutError: it did not come in time.
        """
        request = self.request
        announced = request.content_length
        if announced:
            self._account(announced)
        content = request.content
        if content.is_eof():
            body = content.read_nowait(-1)
            self._account(len(body))
            return body
        if "Expect" in request.headers:
            await self._send_continue()
        wait_s = self.shared.in_flight.limits.body_wait_ms_max / 1000
        try:
            async with asyncio.timeout(wait_s):
                return await self._read_chunks()
        except TimeoutError:
            raise BodyTimeoutError(f"the body did not come within {wait_s:g} s") from None
        except (web.RequestPayloadError, web.PayloadAccessError) as error:
            raise MalformedRequestError(f"the body cannot be read: {error}") from None

    async def _read_chunks(self) -> bytes:
        content = self.request.content
        chunks: list[bytes] = []
        size = 0
        while chunk := await content.readany():
            chunks.append(chunk)
            size += len(chunk)
            self._account(size)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _account(self, size: int) -> None:
        """The body has this many bytes, or more: announced, or as it came (compressed bodies grow)."""
        most = self.shared.in_flight.limits.request_bytes_max
        if size > most:
            raise RequestTooLargeError(
                f"the body has {size} bytes or more; at most {most} are taken in one request"
            )
        if size > self.reserved_bytes:
            self.shared.in_flight.reserve(size - self.reserved_bytes)
            self.reserved_bytes = size

    async def _send_continue(self) -> None:
        """Ask for the body, now that it is known to be wanted: curl waits a second for this."""
        request = self.request
        if request.version == HttpVersion11 and self.header("Expect").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            # The interim answer is not part of the final one's size.
            request.writer.output_size = 0
