"""The dispatcher turns a request into a response: route, limits, request id, errors, access log, metrics.

Every response has ``X-Request-Id``: the client's id if it is well-formed, otherwise the node's id and a counter. An
exception that is not a ``MilenaError`` is logged and counted (``Shared.typed``), and the client gets an
``InternalError``.
"""

import asyncio
import itertools
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from http import HTTPStatus

from aiohttp import web

from http_api.access.group_shares import GroupShares
from http_api.access.proxies import TrustedProxies
from http_api.access.refusals import name_in
from http_api.console.files import console_files
from http_api.ports.node import Ports
from http_api.protocol.answers import (
    SERVER,
    empty_answer,
    error_answer,
    json_answer,
    printable,
)
from http_api.protocol.errors import (
    SCRIPT_CHALLENGE,
    HeadersTooLargeError,
    HttpVersionError,
    UrlTooLongError,
)
from http_api.protocol.headers import check_headers
from http_api.serving.call import Call
from http_api.serving.connections import Connections
from http_api.serving.cross_origin import CrossOrigin
from http_api.serving.endpoint import Route
from http_api.serving.in_flight import InFlight, RequestBytes
from http_api.serving.known_hosts import KnownHosts
from http_api.serving.openapi import encode_document
from http_api.serving.places import Streams, pause
from http_api.serving.quotas import Quotas
from http_api.serving.request_metrics import RequestMetrics
from http_api.serving.routing import Match, Router
from http_api.serving.shared import Shared
from http_api.serving.unknown import check_known
from milena.model.access import ANONYMOUS
from milena.model.contained import ContainedErrors
from milena.model.errors import (
    FateUnknownError,
    ForbiddenError,
    InternalError,
    MalformedRequestError,
    MilenaError,
    NoQuorumError,
    NotReadyError,
    RouteNotFoundError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from milena.model.turns import Turns

_access_log = logging.getLogger("http_api.access")

_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

_TOPIC_MISSING_CODE_DEFAULT = 40401
_OF_PARSER: Mapping[HTTPStatus, type[MilenaError]] = {
    HTTPStatus.BAD_REQUEST: MalformedRequestError,
    HTTPStatus.REQUEST_URI_TOO_LONG: UrlTooLongError,
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: HeadersTooLargeError,
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: HttpVersionError,
}
"""The error for each status of the HTTP parser."""

# One metrics label for all paths without a route, because clients can send any number of different paths.
_UNROUTED = "unrouted"


class Dispatcher:
    """Responds to requests by a table of routes. Used on one event loop; holds no locks.

    Invariant: ``shared.in_flight`` counts the requests inside of ``handle`` and the bytes of their bodies.
    """

    def __init__(
        self,
        ports: Ports,
        routes: Iterable[Route],
        *,
        origins: Collection[str] = (),
        hosts: Collection[str] = (),
        proxies: Collection[str] = (),
        contained: ContainedErrors | None = None,
        quotas: Quotas | None = None,
        group_shares: GroupShares | None = None,
        request_bytes: RequestBytes | None = None,
    ) -> None:
        table = tuple(routes)
        self.shared = Shared(
            ports=ports,
            in_flight=InFlight(ports.limits, request_bytes),
            request_metrics=RequestMetrics(),
            turns=Turns(),
            connections=Connections(ports.limits.connections_max),
            streams=Streams(ports.limits.streams_max),
            quotas=quotas or Quotas(ports.limits, lambda: ports.metadata.image.quotas),
            group_shares=group_shares or GroupShares(),
            contained=ContainedErrors() if contained is None else contained,
            description=encode_document(table),
        )
        self._router = Router(table)
        self._console = console_files()
        self._cross_origin = CrossOrigin(origins)
        self.hosts = KnownHosts(hosts, ports.metadata)
        self.proxies = TrustedProxies(proxies)
        self._id_prefix = f"{ports.metadata.node_id}-"
        self._counter = itertools.count(1)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to one request. The only errors raised are cancellation and errors of the connection."""
        clock = asyncio.get_running_loop().time
        started = clock()
        request = self.proxies.seen_through(request)
        request_id = self._request_id(request)
        own = [
            ("X-Request-Id", request_id),
            ("Server", SERVER),
            *self._cross_origin.headers(request.headers),
        ]
        call = Call(request, self.shared, request_id, own)
        route: Route | None = None
        response: web.StreamResponse | None = None
        self.shared.connections.work(request.protocol)
        try:
            # If the headers are ambiguous, the end of the request is uncertain. So close the connection after it.
            call.is_last = True
            check_headers(request.version, request.headers)
            call.is_last = False
            if request.method == "OPTIONS":
                response = self._describe(request)
            else:
                match = self._router.find(request.method, request.rel_url.raw_path)
                route = match.route
                call.names = match.names
                response = await self._run(route, call)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except RouteNotFoundError as error:
            # Look for a file of the console last, so that it does not slow down requests to endpoints.
            response = self._console.answer(request) or self.failure(error, route, call.request_id)
        except Exception as error:  # noqa: BLE001  (the last resort of a server: never half an answer)
            self._note_refusal(call, error)
            response = self.failure(error, route, call.request_id)
        finally:
            self.shared.connections.rest(request.protocol)
            self.shared.in_flight.release(call.body.holder, call.body.reserved_bytes)
            if self.shared.quotas.is_on:
                call.pay(response)
            if call.begun is None:
                self._observe(call, route, response, clock() - started)
            else:
                self._observe(call, route, call.begun, call.begun_s - started)
        if call.begun is not None and response is not call.begun:
            # A part of a streaming response was sent already. Close the connection, so that the client notices that the
            # body is incomplete.
            request.protocol.force_close()
            return call.begun
        if not response.prepared:
            response.headers.update(own)
            _fit(response, call)
        return response

    def failure(self, error: BaseException, route: Route | None, request_id: str) -> web.Response:
        """Return the response to an error, and report an unexpected error."""
        if isinstance(error, web.HTTPException):
            return _plain_http_error(error)
        code = _TOPIC_MISSING_CODE_DEFAULT if route is None else route.topic_missing_code
        return error_answer(self.shared.typed(error, request_id), topic_missing_code=code)

    def refuse(self, request: web.BaseRequest, status: HTTPStatus, reason: str) -> web.Response:
        """Return the response to bytes that the HTTP parser refused."""
        request_id = self._request_id(request)
        # The first line of the parser's text is its message. The other lines show the bytes at fault.
        sentence = printable(reason).strip().partition("\n")[0].rstrip(":") or status.description
        _access_log.info(
            "refused status=%d reason=%s remote=%s request_id=%s",
            status,
            sentence,
            request.remote,
            request_id,
        )
        error = _OF_PARSER.get(status, InternalError)(f"HTTP {status} {status.phrase}: {sentence}")
        response = self.failure(error, None, request_id)
        response.headers.update([("X-Request-Id", request_id), ("Server", SERVER)])
        self.shared.request_metrics.observe("other", _UNROUTED, response.status, 0.0)
        return response

    def refuse_unexpected(self, request: web.BaseRequest, error: BaseException) -> web.Response:
        """Return the response to an error outside of ``handle``."""
        request_id = self._request_id(request)
        response = self.failure(error, None, request_id)
        response.headers.update([("X-Request-Id", request_id), ("Server", SERVER)])
        self.shared.request_metrics.observe("other", _UNROUTED, response.status, 0.0)
        return response

    async def _run(self, route: Route, call: Call) -> web.StreamResponse:
        access = route.access
        if not access.is_public:
            # Authenticate before the body is read, and before any error reveals something about the cluster.
            try:
                await self._identify(route, call)
            except (UnauthenticatedError, TooManyRequestsError) as error:
                self._note_stranger(call.request, error)
                await self._distrust(call.request)
                raise
            except (NotReadyError, NoQuorumError) as error:
                if "Idempotency-Key" not in call.request.headers:
                    raise
                # The request may be a retry, and a node may have written the first attempt. So this is no plain
                # refusal.
                raise FateUnknownError(
                    f"{error.message}; an earlier try under this idempotency key may have written; send it again"
                ) from error
            principal = call.rights.known_principal
            self.hosts.check_stranger(principal, call.request.headers.get("Host"))
            call.body.holder = principal or call.body.holder
        check_known(route, call.request)
        if route.is_exempt:
            return await route.handler(call)
        if self.shared.quotas.is_on:
            await call.take_turn()
        response = await self._run_admitted(route, call)
        if (access.has_more or access.is_filtered) and not call.rights.has_asked:
            raise RuntimeError(f"{route.method} {route.path} never asked what its caller may")
        if route.method == "GET" and call.begun is None:
            # Check the rights again, because they may have changed while the request waited for data. Streams do this
            # themselves.
            call.rights.check_again()
        return response

    async def _identify(self, route: Route, call: Call) -> None:
        """Authenticate the caller, and check its right to the resource in the path; raises as ``Rights.identify``."""
        try:
            await call.rights.identify(route.access, call.names)
        except ForbiddenError:
            # Another node may have given the right a moment ago. Callers without credentials cost the quorum nothing.
            if call.rights.known_principal in ("", ANONYMOUS):
                raise
            await self.shared.ports.metadata.current_image()
            await call.rights.identify(route.access, call.names)

    def _note_refusal(self, call: Call, error: Exception) -> None:
        """Count a refused request for the audit log, if its caller did not have the right."""
        if isinstance(error, ForbiddenError):
            address = call.request.remote or ""
            self.shared.ports.refusals.add(call.rights.known_principal, address, error.message)

    def _note_stranger(self, request: web.BaseRequest, error: MilenaError) -> None:
        """Count a failed authentication for the audit log, with the user name if this user exists."""
        ports = self.shared.ports
        authorization = request.headers.get("Authorization", "")
        users = ports.metadata.image.users
        ports.refusals.add_stranger(
            request.remote or "", name_in(authorization), error.message, users
        )

    async def _distrust(self, request: web.BaseRequest) -> None:
        """Delay the response to bad credentials, unless they are the first bad ones on this connection."""
        connections, connection = self.shared.connections, request.protocol
        if "Authorization" not in request.headers:
            return
        if not connections.is_distrusted(connection):
            connections.distrust(connection)
            return
        # During the delay, the connection counts as idle, and may be closed if there are too many.
        connections.rest(connection)
        await pause(self.shared.ports.limits.bad_credentials_delay_ms / 1000)

    async def _run_admitted(self, route: Route, call: Call) -> web.StreamResponse:
        if route.body is not None:
            self._cross_origin.check(call.request.headers)
        elif route.has_effect:
            self._cross_origin.check_effect(call.request.headers)
        place = call.body.place
        place.take(call.body.holder, asyncio.get_running_loop().time())
        try:
            if route.is_current:
                await self.shared.ports.metadata.current_image()
            return await route.handler(call)
        finally:
            place.leave()

    def _request_id(self, request: web.BaseRequest) -> str:
        given = request.headers.get("X-Request-Id")
        if given is not None and _SANE_REQUEST_ID.fullmatch(given):
            return given
        return self.next_request_id()

    def next_request_id(self) -> str:
        """Return a new id for a request that was sent without one."""
        return f"{self._id_prefix}{next(self._counter):x}"

    def find(self, method: str, raw_path: str) -> Match:
        """Return the route of a request and the parameters in its path.

        Raises:
            RouteNotFoundError, MethodNotAllowedError, MalformedRequestError: no route matches.
        """
        return self._router.find(method, raw_path)

    def _describe(self, request: web.BaseRequest) -> web.Response:
        path = request.rel_url.raw_path
        if path == "*":
            return empty_answer(headers=[("Allow", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT")])
        allowed = self._router.allowed(path)
        preflight = self._cross_origin.preflight(request.headers, allowed)
        return empty_answer(headers=[("Allow", allowed), *preflight])

    def _observe(
        self, call: Call, route: Route | None, response: web.StreamResponse | None, seconds: float
    ) -> None:
        # Status 499 is nginx's for "the client closed the connection" before it had a response.
        status = 499 if response is None else response.status
        request = call.request
        self.observe(route, status, seconds)
        if self.is_logged(status):
            self.log_access(
                request.method,
                request.rel_url.raw_path,
                status,
                seconds,
                remote=request.remote,
                request_id=call.request_id,
                principal=call.rights.known_principal,
            )

    def observe(self, route: Route | None, status: int, seconds: float) -> None:
        """Count a request and its response."""
        path = _UNROUTED if route is None else route.path
        method = "other" if route is None else route.method
        self.shared.request_metrics.observe(method, path, status, seconds)

    @staticmethod
    def is_logged(status: int) -> bool:
        """Return whether responses with this status are written to the access log."""
        return _access_log.isEnabledFor(_access_level(status))

    @staticmethod
    def log_access(
        method: str,
        raw_path: str,
        status: int,
        seconds: float,
        *,
        remote: str | None,
        request_id: str,
        principal: str,
    ) -> None:
        """Write a line of the access log. ``principal`` is empty without valid credentials."""
        level = _access_level(status)
        _access_log.log(
            # A probe that says no is an answer, and not a fault: an orchestrator asks every few seconds.
            min(level, logging.INFO) if raw_path in _PROBES else level,
            "request method=%s path=%s status=%d duration_ms=%.1f remote=%s request_id=%s%s",
            method,
            raw_path,
            status,
            seconds * 1000,
            remote,
            request_id,
            f" principal={principal}" if principal else "",
        )


def _fit(response: web.StreamResponse, call: Call) -> None:
    """Set headers that depend on the connection and the client: close, and the challenge for scripts."""
    if call.is_last:
        response.force_close()
    if response.status == HTTPStatus.UNAUTHORIZED and _is_script(call.request):
        response.headers["WWW-Authenticate"] = SCRIPT_CHALLENGE


def _is_script(request: web.BaseRequest) -> bool:
    """Return whether a script in a web page sent this request. Source: Fetch Metadata."""
    return request.headers.get("Sec-Fetch-Dest") == "empty"


_PROBES = frozenset({"/readyz", "/ready", "/status/ready", "/startupz"})
"""The probes that answer 503 while a node starts or drains."""


def _access_level(status: int) -> int:
    if status < 400:
        return logging.DEBUG
    return logging.INFO if status < 500 else logging.WARNING


def _plain_http_error(error: web.HTTPException) -> web.Response:
    """Return the response to an error of aiohttp, in the API's envelope."""
    return json_answer(
        {"error_code": error.status, "message": f"HTTP {error.status} {error.reason}"},
        status=error.status,
    )
