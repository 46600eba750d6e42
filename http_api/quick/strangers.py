"""Refuse clients that guess credentials at low cost, and with a delay.

A client that guesses passwords must not slow down others. This module looks at the bytes of two kinds of requests,
before aiohttp parses them:

- requests on a connection whose last request had bad credentials;
- requests with a password from an address with too many wrong ones, or while too many passwords wait for their check.

If the usual way (aiohttp and the dispatcher) would refuse such a request, this module sends the same response, for a
tenth of the cost. It decides only if the request has arrived completely and its end is certain. All other requests,
and all with good credentials, go the usual way.

The response is delayed, and the connection is not read from in the meantime. So a client can send at most two requests
a second on a connection. Clients with good credentials are never delayed, even on the same connection of a proxy. The
usual way delays such responses too (``Dispatcher``), except for the first one on a connection.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import orjson

from http_api.protocol.answers import SERVER, error_envelope
from http_api.protocol.errors import error_headers, row_of
from http_api.protocol.media import JSON_TYPE
from http_api.quick.lane import Resting, remote_of
from http_api.quick.separate_requests import HEAD_END
from http_api.serving.dispatch import Dispatcher
from http_api.serving.endpoint import Route
from http_api.serving.plain_answer import encode_answer
from milena.model.contained import EntryPoint
from milena.model.errors import MilenaError, TooManyRequestsError, UnauthenticatedError

_log = logging.getLogger("http_api.access")

REST_STEP_S = 0.05
"""Delayed responses that are due within this time, in seconds, are sent together, with one timer."""
TOLD_EVERY_S = 60.0
ADDRESSES_MAX = 10_000
SAID_MAX = 1_000
_HEAD = re.compile(
    rb"(DELETE|GET|PATCH|POST|PUT) (/[A-Za-z0-9/._~%?&=,+:@-]*) HTTP/1\.1\r\n"
    rb"(?:[A-Za-z0-9_-]+:[\t -~\x80-\xff]*\r\n)+"
)
"""Pattern of a request in the form that common programs send. Requests of another form go the usual way."""
_LENGTH = re.compile(rb"\r\ncontent-length: ?(\d{1,9})(?=\r\n)")
_CREDENTIALS = re.compile(rb"\r\nauthorization: ?((?:basic|bearer) [!-~]+)(?=\r\n)", re.IGNORECASE)
_TELLING = re.compile(
    rb"\r\n(?:connection|expect|origin|sec-fetch-dest|transfer-encoding|upgrade|x-request-id):"
)
"""Headers (in lower case) that would change the response, or with which the request's end is uncertain."""
_PASSWORD = b"asic "
"""A part of every header with a password, for a quick search: ``Basic`` with any first letter."""


@dataclass(frozen=True, slots=True)
class _Said:
    """A cached error response without the headers that differ each time, such as the request id."""

    status: int
    phrase: str
    body: bytes
    headers: Mapping[str, str]


class RestingRefusal:
    """A response that waits for its delay. A connection treats it like a ``QuickRequest``."""

    __slots__ = ("_answer", "_connection", "_over", "due_s", "is_over")

    def __init__(self, connection: Resting, answer: bytes, due_s: float) -> None:
        self._connection: Resting | None = connection
        self._answer = answer
        self._over: asyncio.Future[None] | None = None
        self.due_s = due_s
        self.is_over = False

    def cancel(self) -> None:
        """Drop the response, because the client has disconnected."""
        self._connection, self._answer = None, b""
        self._end()

    def over(self) -> "asyncio.Future[None]":
        """Return a future that is done once the response was sent. Call this only before that."""
        self._over = asyncio.get_running_loop().create_future()
        return self._over

    def give(self) -> None:
        """Send the response."""
        connection = self._connection
        if connection is not None:
            self._end()
            connection.finish_quick(self._answer)

    def _end(self) -> None:
        self.is_over = True
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


class _Rest:
    """Delayed responses in the order in which they are due, with one timer. Used on the event loop."""

    def __init__(self, report: Callable[[BaseException], None]) -> None:
        self._report = report
        self._resting: deque[RestingRefusal] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, refusal: RestingRefusal) -> None:
        """Add a response, which must be due after all others."""
        self._resting.append(refusal)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(refusal.due_s, self._give)

    def _give(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        while self._resting and self._resting[0].due_s <= now_s:
            try:
                self._resting.popleft().give()
            except Exception as error:  # noqa: BLE001 - the other refusals are due all the same
                self._report(error)
        self._timer = None
        if self._resting:
            due_s = max(self._resting[0].due_s, now_s + REST_STEP_S)
            self._timer = loop.call_at(due_s, self._give)


class Strangers:
    """The checks and delayed responses of one server. Used on its event loop."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._callers = dispatcher.shared.ports.callers
        self._refusals = dispatcher.shared.ports.refusals
        self._connections = dispatcher.shared.connections
        self._rest_s = dispatcher.shared.ports.limits.bad_credentials_delay_ms / 1000
        self._rest = _Rest(self._report)
        self._said: dict[tuple[type[MilenaError], str], _Said] = {}
        """Error responses by error class and message."""
        self._told_s: dict[str, float] = {}
        """When the log last mentioned an address (loop time, seconds)."""

    def turn_away(self, connection: Resting, data: bytes, now_s: float) -> RestingRefusal | None:
        """Refuse a request that arrived on an idle connection, if it is one of the two kinds in the module docstring.

        Returns:
            The delayed response, or None: the request goes the usual way.
        """
        host = remote_of(connection.peername) or ""
        if not self._connections.is_distrusted(connection) and (
            _PASSWORD not in data or self._callers.turned_away(host) is None
        ):
            return None
        refused = self._refused(connection, data, host)
        if refused is None:
            return None
        error, route = refused
        self._connections.distrust(connection)
        self._refusals.add("", host, error.message)
        self._tell(host, error, now_s)
        refusal = RestingRefusal(connection, self._answer(error, route), now_s + self._rest_s)
        self._rest.add(refusal)
        return refusal

    def _refused(
        self, connection: Resting, data: bytes, host: str
    ) -> tuple[MilenaError, Route] | None:
        """Return the error with which the usual way would refuse the request, and its route; None if it might not."""
        found = asked(data)
        if found is None:
            return None
        method, target, authorization = found
        route = self._closed_route(method, target)
        if route is None:
            return None
        try:
            if self._callers.known(authorization, host) is not None:
                self._connections.trust(connection)
                return None
        except (UnauthenticatedError, TooManyRequestsError) as error:
            return error, route
        except MilenaError:
            return None
        is_password = authorization.encode()[1:].startswith(_PASSWORD)
        refusal = self._callers.turned_away(host) if is_password else None
        return None if refusal is None else (refusal, route)

    def _closed_route(self, method: str, target: str) -> Route | None:
        """Return the route of a request; None if there is none, or if it needs no credentials."""
        try:
            route = self._dispatcher.find(method, target.partition("?")[0]).route
        except MilenaError:
            return None
        return None if route.access.is_public else route

    def _report(self, error: BaseException) -> None:
        shared = self._dispatcher.shared
        shared.contained.report(EntryPoint.CALLBACK, error, "callback", "refusals")

    def _answer(self, error: MilenaError, route: Route) -> bytes:
        key = (type(error), error.message)
        said = self._said.get(key)
        if said is None:
            if len(self._said) >= SAID_MAX:
                del self._said[next(iter(self._said))]
            said = self._said[key] = _said(error, route)
        self._dispatcher.observe(route, said.status, 0.0)
        own = {"X-Request-Id": self._dispatcher.next_request_id(), "Server": SERVER}
        return encode_answer(
            said.status, said.phrase, said.body, JSON_TYPE, {**said.headers, **own}
        )

    def _tell(self, host: str, refusal: MilenaError, now_s: float) -> None:
        """Log at most one line for each address and minute. A line per request would cost more than the request."""
        told_s = self._told_s.get(host)
        if told_s is not None and now_s < told_s + TOLD_EVERY_S:
            return
        self._told_s.pop(host, None)
        if len(self._told_s) >= ADDRESSES_MAX:
            del self._told_s[next(iter(self._told_s))]
        self._told_s[host] = now_s
        _log.info("turned away, and others like it: remote=%s reason=%s", host, refusal.message)


def _said(error: MilenaError, route: Route) -> _Said:
    status = row_of(error).status
    envelope = error_envelope(error, topic_missing_code=route.topic_missing_code)
    headers = dict(error_headers(error, status))
    return _Said(status, HTTPStatus(status).phrase, orjson.dumps(envelope), headers)


def asked(data: bytes) -> tuple[str, str, str] | None:
    """Return method, target and credentials of a request; None if its form is unusual or it has no credentials."""
    end = data.find(HEAD_END)
    head = data[: end + 2]
    line = _HEAD.fullmatch(head)
    if end < 0 or line is None:
        return None
    small = head.lower()
    credentials, lengths = _CREDENTIALS.findall(head), _LENGTH.findall(small)
    if len(credentials) != 1 or small.count(b"authorization") != 1 or _TELLING.search(small):
        return None
    if len(lengths) != small.count(b"content-length") or len(lengths) > 1:
        return None
    if small.count(b"\r\nhost:") != 1:
        return None
    body_bytes = int(lengths[0]) if lengths else 0
    if len(data) != end + len(HEAD_END) + body_bytes:
        return None
    return line[1].decode(), line[2].decode(), credentials[0].decode()
