"""aiohttp's bare server around a dispatcher: the quickest way from a socket to a handler.

What the HTTP parser itself refuses (no HTTP at all, too long a line, too many headers) is answered in the API's own
envelope too, with a request id, and logged without a traceback: anybody can send such bytes, as often as they like.
"""

import asyncio
import logging
from http import HTTPStatus

from aiohttp import web

from http_api.dispatch import Dispatcher

_log = logging.getLogger("http_api")

KEEPALIVE_S = 75.0
"""Longer than the usual 60 s of load balancers, so that it is never us who closes under a request."""

LINGERING_S = 2.0
"""How long the rest of a refused body is read and dropped, so that the client gets to see the refusal."""


class ApiServer(web.Server):
    """Makes a protocol a connection; called on the event loop that serves it.

    Handlers of clients that went away are cancelled, so that nobody waits for records that nobody will read.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(dispatcher.handle, handler_cancellation=True, loop=loop)
        self._dispatcher = dispatcher
        self._event_loop = loop

    def __call__(self) -> web.RequestHandler:
        """The protocol of a new connection."""
        return _Protocol(self, self._dispatcher, self._event_loop)


class _Protocol(web.RequestHandler):
    """One connection."""

    __slots__ = ("_dispatcher",)

    def __init__(
        self, server: ApiServer, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGERING_S,
            # The dispatcher writes the access log; to aiohttp, None means "log nothing".
            access_log=None,  # type: ignore[arg-type]  # its annotation leaves None out
        )
        self._dispatcher = dispatcher

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
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            _log.error("unexpected error outside of any handler", exc_info=exc)
        response = self._dispatcher.refuse(request, HTTPStatus(status), message or "")
        response.force_close()
        return response
