"""The HTTP server: aiohttp's low-level server, which passes each request to a dispatcher.

The HTTP parser itself refuses some bytes: other protocols, lines that are too long, too many headers. The response to
these also has the API's error envelope and a request id. The log has one line for each, without a traceback, because
any client can send such bytes at any rate.
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
"""Time after which an idle connection is closed. Load balancers close theirs after 60 s, so they close first.

Otherwise the server could close a connection while a request is on its way.
"""

URL_BYTES_MAX = 8190
FIELD_BYTES_MAX = 8192
"""Limit of a header's name and value. It must differ from ``URL_BYTES_MAX``: the parser's error only has the limit."""
FIELDS_MAX = 128

LINGERING_S = 2.0
"""Time for which the rest of a refused body is read and dropped. A client that is still sending then gets the error."""


class ApiServer(web.Server):
    """The server. asyncio calls it for a protocol object per connection, on the server's event loop.

    If a client disconnects, its handler is cancelled. Otherwise it could wait long for records that no client reads.
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
        """Called by aiohttp before the server stops: end all streams, which otherwise might never end."""
        self._dispatcher.shared.streams.end_all()
        super().pre_shutdown()

    def __call__(self) -> web.RequestHandler:
        """Return the protocol object for a new connection."""
        return _Protocol(self, self._dispatcher, self._unsent, self._event_loop)


class _Protocol(QuickConnection):
    """One connection of the API, with its limits."""

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
            # ``http_api.protocol.codings`` unpacks bodies, within limits.
            auto_decompress=False,
            # None turns off aiohttp's access log, because the dispatcher writes its own.
            access_log=None,
        )
        self._dispatcher = dispatcher
        self._unsent = unsent
        self.open_lane(server.lane, server.strangers)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called when a client has connected: count the connection."""
        super().connection_made(transport)
        self._dispatcher.shared.connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called when the connection is closed: forget it."""
        self._unsent.discard(self)
        self._dispatcher.shared.connections.discard(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Called when the send buffer is full, because the client reads too slowly: watch the connection."""
        super().pause_writing()
        self._unsent.add(self)

    def resume_writing(self) -> None:
        """Called when the send buffer has room again: stop watching the connection."""
        self._unsent.discard(self)
        super().resume_writing()

    def unsent_bytes(self) -> int:
        """Return the number of bytes in the send buffer."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def taken_bytes(self) -> int:
        """Return the number of bytes that the client has acknowledged; see ``unsent.taken_bytes``."""
        return 0 if self.transport is None else taken_bytes(self.transport)

    def give_up(self) -> None:
        """Close the connection at once, and drop what is in the send buffer."""
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
        """Return the response to bytes that the parser refused, or to an unexpected error; the connection closes."""
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
    """Return status and message for a head above a limit; None for other errors.

    The parser itself has status 400 for all limits, and messages about its buffers.
    """
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
