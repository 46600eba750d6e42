"""aiohttp's bare server around a dispatcher: the quickest way from a socket to a handler.

What the HTTP parser itself refuses (no HTTP at all, too long a line, too many headers) is answered in the API's own
envelope too, with a request id, and logged without a traceback: anybody can send such bytes, as often as they like.
"""

import asyncio
from http import HTTPStatus

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from http_api.quick.connection import QuickConnection
from http_api.quick.lane import QuickLane
from http_api.quick.strangers import Strangers
from http_api.serving.dispatch import Dispatcher
from http_api.streaming.unsent import UnsentAnswers, reset_when_closed, taken_bytes

KEEPALIVE_S = 75.0
"""Longer than the usual 60 s of load balancers, so that it is never us who closes under a request."""

URL_BYTES_MAX = 8190
FIELD_BYTES_MAX = 8192
"""Name and value of a header. Another number than the URL's: by it the parser's error tells which is too long."""
FIELDS_MAX = 128

LINGERING_S = 2.0
"""How long the rest of a refused body is read and dropped, so that the client gets to see the refusal."""


class ApiServer(web.Server):
    """Makes a protocol a connection; called on the event loop that serves it.

    The handler of a client that went away is cancelled: it would wait for records that no client reads.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(dispatcher.handle, handler_cancellation=True, loop=loop)
        self.lane = QuickLane(dispatcher)
        self.strangers = Strangers(dispatcher)
        limits = dispatcher.shared.ports.limits
        self._dispatcher = dispatcher
        self._unsent = UnsentAnswers(
            bytes_max=limits.unsent_bytes_max, wait_ms_max=limits.unsent_wait_ms_max
        )
        self._event_loop = loop

    def pre_shutdown(self) -> None:
        """The server is about to stop: streams come to their end, as any other answer does."""
        self._dispatcher.shared.streams.end_all()
        super().pre_shutdown()

    def __call__(self) -> web.RequestHandler:
        """The protocol of a new connection."""
        return _Protocol(self, self._dispatcher, self._unsent, self._event_loop)


class _Protocol(QuickConnection):
    """One connection."""

    __slots__ = ("_dispatcher", "_unsent")

    def __init__(
        self,
        server: ApiServer,
        dispatcher: Dispatcher,
        unsent: UnsentAnswers,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGERING_S,
            max_line_size=URL_BYTES_MAX,
            max_field_size=FIELD_BYTES_MAX,
            max_headers=FIELDS_MAX,
            # Bodies are unpacked under our own bounds (``http_api.protocol.codings``).
            auto_decompress=False,
            # The dispatcher writes the access log; to aiohttp, None means "log nothing".
            access_log=None,
        )
        self._dispatcher = dispatcher
        self._unsent = unsent
        self.open_lane(server.lane, server.strangers)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        super().connection_made(transport)
        self._dispatcher.shared.connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Take leave of the connection."""
        self._unsent.discard(self)
        self._dispatcher.shared.connections.discard(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not keep up."""
        super().pause_writing()
        self._unsent.add(self)

    def resume_writing(self) -> None:
        """The client takes bytes again."""
        self._unsent.discard(self)
        super().resume_writing()

    def unsent_bytes(self) -> int:
        """Bytes that the client has not taken."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def taken_bytes(self) -> int:
        """Bytes that the client has taken."""
        return 0 if self.transport is None else taken_bytes(self.transport)

    def give_up(self) -> None:
        """Nothing of what lies here is sent any more."""
        if self.transport is not None:
            reset_when_closed(self.transport)
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what never became a request; the connection closes after it."""
        if request.writer.output_size > 0:
            raise ConnectionError("half an answer has been sent; nothing can follow it")
        if exc is not None and status == HTTPStatus.INTERNAL_SERVER_ERROR:
            response = self._dispatcher.refuse_unexpected(request, exc)
        else:
            refusal = _too_large(exc) or (HTTPStatus(status), message or "")
            response = self._dispatcher.refuse(request, *refusal)
        response.force_close()
        return response


def _too_large(error: BaseException | None) -> tuple[HTTPStatus, str] | None:
    """Status and sentence for a head that is above a bound: the parser has 400 for all, and names its buffers."""
    if isinstance(error, LineTooLong):
        _, limit, *_ = error.args
        if limit == URL_BYTES_MAX:
            return HTTPStatus.REQUEST_URI_TOO_LONG, f"the URL has more than {URL_BYTES_MAX} bytes"
        told = f"a header has more than {FIELD_BYTES_MAX} bytes"
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, told
    if isinstance(error, BadHttpMessage) and error.message == "Too many headers received":
        return (
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"there are more than {FIELDS_MAX} headers",
        )
    return None
