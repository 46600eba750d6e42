"""From a request to its answer: route, limits, request id, errors, access log, metrics.

Every answer carries ``X-Request-Id``: the client's own when it is a sane one, else one made of the node's id and a
counter. A broken invariant (``AssertionError``) is answered like any bug, and reported to the node, which stops.
"""

import asyncio
import itertools
import logging
import re
from collections.abc import Callable, Iterable
from http import HTTPStatus

from aiohttp import web

from http_api.answers import (
    empty_answer,
    error_answer,
    internal_error_answer,
    json_answer,
    printable,
)
from http_api.call import Call, InFlight, Shared
from http_api.ports import Ports
from http_api.request_metrics import RequestMetrics
from http_api.routing import Route, Router
from storage.errors import MilenaError

_log = logging.getLogger("http_api")
_access_log = logging.getLogger("http_api.access")

_SERVER = "milena"

_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

_TOPIC_MISSING_CODE_DEFAULT = 40401

# One label for all paths that no route has: anybody can invent any number of them.
_UNROUTED = "unrouted"

BrokenInvariantHook = Callable[[AssertionError], None]


class Dispatcher:
    """Answers requests from a table of routes. Lives on one event loop and holds no locks.

    Invariant: ``shared.in_flight`` counts exactly the requests inside ``handle`` and the bytes of their bodies.
    """

    def __init__(
        self,
        ports: Ports,
        routes: Iterable[Route],
        *,
        on_broken_invariant: BrokenInvariantHook | None = None,
    ) -> None:
        self.shared = Shared(
            ports=ports, in_flight=InFlight(ports.limits), request_metrics=RequestMetrics()
        )
        self._router = Router(routes)
        self._on_broken_invariant = on_broken_invariant
        self._id_prefix = f"{ports.metadata.node_id}-"
        self._counter = itertools.count(1)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; raises nothing but cancellation and broken connections."""
        clock = asyncio.get_running_loop().time
        started = clock()
        call = Call(request, self.shared, self._request_id(request))
        route: Route | None = None
        response: web.StreamResponse | None = None
        try:
            if request.method == "OPTIONS":
                response = self._describe(request)
            else:
                match = self._router.find(request.method, request.rel_url.raw_path)
                route = match.route
                call.names = match.names
                response = await self._run(route, call)
        except MilenaError as error:
            code = _TOPIC_MISSING_CODE_DEFAULT if route is None else route.topic_missing_code
            response = error_answer(error, topic_missing_code=code)
        except web.HTTPException as error:
            response = _plain_http_error(error)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except AssertionError as error:
            response = self._broken_invariant(error, call)
        except Exception:  # noqa: BLE001  (the last resort of a server: logged, and never half an answer)
            _log.exception("unexpected error request_id=%s", call.request_id)
            response = internal_error_answer(call.request_id)
        finally:
            self.shared.in_flight.body_bytes -= call.reserved_bytes
            self._observe(call, route, response, clock() - started)
        if not response.prepared:
            response.headers["X-Request-Id"] = call.request_id
            # In place of aiohttp's, which tells the versions of Python and of itself to everybody.
            response.headers["Server"] = _SERVER
        return response

    def refuse(self, request: web.BaseRequest, status: HTTPStatus, reason: str) -> web.Response:
        """The answer to bytes that the HTTP parser took for no request."""
        request_id = self._request_id(request)
        # The parser's text goes on with the bytes at fault; its first line is for people.
        sentence = printable(reason).strip().partition("\n")[0].rstrip(":") or status.description
        _access_log.info(
            "refused status=%d reason=%s remote=%s request_id=%s",
            status,
            sentence,
            request.remote,
            request_id,
        )
        self.shared.request_metrics.observe("other", _UNROUTED, status, 0.0)
        return json_answer(
            {"error_code": int(status), "message": f"HTTP {status} {status.phrase}: {sentence}"},
            status=status,
            headers=[("X-Request-Id", request_id), ("Server", _SERVER)],
        )

    async def _run(self, route: Route, call: Call) -> web.StreamResponse:
        if route.is_exempt:
            return await route.handler(call)
        in_flight = self.shared.in_flight
        in_flight.admit()
        try:
            return await route.handler(call)
        finally:
            in_flight.request_count -= 1

    def _request_id(self, request: web.BaseRequest) -> str:
        given = request.headers.get("X-Request-Id")
        if given is not None and _SANE_REQUEST_ID.fullmatch(given):
            return given
        return f"{self._id_prefix}{next(self._counter):x}"

    def _describe(self, request: web.BaseRequest) -> web.Response:
        path = request.rel_url.raw_path
        if path == "*":
            return empty_answer(headers=[("Allow", "DELETE, GET, HEAD, OPTIONS, POST, PUT")])
        return empty_answer(headers=[("Allow", self._router.allowed(path))])

    def _broken_invariant(self, error: AssertionError, call: Call) -> web.Response:
        _log.critical(
            "broken invariant request_id=%s error=%s", call.request_id, error, exc_info=error
        )
        if self._on_broken_invariant is not None:
            self._on_broken_invariant(error)
        return internal_error_answer(call.request_id)

    def _observe(
        self, call: Call, route: Route | None, response: web.StreamResponse | None, seconds: float
    ) -> None:
        # 499 is what proxies log for a client that went away before its answer.
        status = 499 if response is None else response.status
        request = call.request
        path = _UNROUTED if route is None else route.path
        method = "other" if route is None else route.method
        self.shared.request_metrics.observe(method, path, status, seconds)
        level = _access_level(status)
        if _access_log.isEnabledFor(level):
            _access_log.log(
                level,
                "request method=%s path=%s status=%d duration_ms=%.1f remote=%s request_id=%s",
                request.method,
                request.rel_url.raw_path,
                status,
                seconds * 1000,
                request.remote,
                call.request_id,
            )


def _access_level(status: int) -> int:
    if status < 400:
        return logging.DEBUG
    return logging.INFO if status < 500 else logging.WARNING


def _plain_http_error(error: web.HTTPException) -> web.Response:
    """What aiohttp itself refuses, in our envelope."""
    return json_answer(
        {"error_code": error.status, "message": f"HTTP {error.status} {error.reason}"},
        status=error.status,
    )
