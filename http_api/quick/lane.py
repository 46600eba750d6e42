"""The quick lane: a fast path for small requests whose head (request line and headers) was seen before.

A producer sends the same head with every record. So aiohttp's parser and the route's ``prepare`` read a head once, and
the lane remembers the result under the bytes of the head. A later request takes the lane if it has the same head, has
arrived completely, and its connection is idle. The lane then passes the body to the node directly, and writes the
response when the node calls back. There is no request object, no parsing of headers, and no task.

A reader that fetches stored batches sends the same head, too, except for its query. The lane remembers such a head
without the query. It responds if the records are in memory.

**Every other request goes the usual way**, through aiohttp and the dispatcher. Examples are an unknown head, a body
that arrives in pieces, a request behind another one, and an invalid body. The lane has not changed anything before it
gives up a request, so the usual way finds the same error again and reports it.

The lane does for its requests what the dispatcher does: limits on requests in flight, request ids, metrics, the access
log, errors in the API's envelope, and no response for a client that has disconnected.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from aiohttp import web
from aiohttp.http import HttpVersion11

from http_api.access import on_behalf
from http_api.access.callers import OPEN, Caller
from http_api.access.certificates import ClientCertificate
from http_api.access.needs import Access
from http_api.protocol.answers import SERVER
from http_api.protocol.media import BATCH_TYPE
from http_api.quick.parsed_head import ParsedHead
from http_api.quick.separate_requests import HEAD_END
from http_api.serving.connections import Closable
from http_api.serving.dispatch import Dispatcher
from http_api.serving.endpoint import QuickHandler, Route
from http_api.serving.plain_answer import COPIED_BYTES_MAX, encode_answer, encode_head
from http_api.serving.quotas import Payer, payer_of
from http_api.serving.unknown import CONDITIONS, TRANSACTION_HEADER, check_query
from milena.model.errors import MilenaError
from milena.model.pending import Pending
from milena.model.quotas import CLIENT_ID_HEADER, QuotaKey

HEADS_MAX = 1024
HEAD_BYTES_MAX = 2048
"""The largest head that the lane remembers, in bytes. All heads together take 2 MB at most."""

BODY_BYTES_MAX = 32 << 10
"""The largest body in the lane, in bytes. For a larger body, the lane would save little in comparison."""

_KEY_NAME = "idempotency-key"
_KEY_LINE = b"\r\nIdempotency-Key: "
"""The header in its common spelling. With another spelling, the request goes the usual way."""

_PLAIN_QUERY = re.compile(r"[A-Za-z0-9_.=&-]*")
"""A query without escapes, which means the same to every parser. With others, the request goes the usual way."""

_TELLING = frozenset(
    {
        "content-encoding",
        "expect",
        "origin",
        "referer",
        "sec-fetch-site",
        "transfer-encoding",
        "upgrade",
        "x-request-id",
        *(name.lower() for name in (*CONDITIONS, TRANSACTION_HEADER)),
    }
)
"""Headers that the lane does not support. A head with one of them is not remembered."""


@dataclass(frozen=True, slots=True)
class Head:
    """All that the lane knows about requests with a certain head."""

    method: str
    raw_path: str
    route: Route
    handler: QuickHandler
    body_bytes: int
    caller: Caller
    """The caller of these requests, which has the rights that they need."""
    principal: str
    """The caller's ``known_principal``."""
    client_id: str | None


class Resting(Closable, Protocol):
    """A connection, as far as the lane uses it."""

    certificate: ClientCertificate | None
    """The client's certificate, if any."""

    @property
    def peername(self) -> object:
        """The client's address, as the transport gives it."""

    def finish_quick(self, answer: bytes, large: bytes = b"") -> None:
        """End the request in progress, and send ``answer`` and ``large``, which may be empty."""


class QuickRequest:
    """One request in the lane, from its bytes to its response."""

    __slots__ = (
        "_connection",
        "_dispatcher",
        "_head",
        "_holder",
        "_over",
        "_request_id",
        "_result",
        "_started_s",
        "is_over",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        connection: Resting,
        head: Head,
        result: Pending[Any],
        *,
        started_s: float,
        holder: str,
    ) -> None:
        shared = dispatcher.shared
        self._holder = holder
        shared.in_flight.enter(self._holder, head.body_bytes)
        shared.connections.work(connection)
        self._dispatcher = dispatcher
        self._connection = connection
        self._head = head
        self._result = result
        self._started_s = started_s
        self._request_id = dispatcher.next_request_id()
        self._over: asyncio.Future[None] | None = None
        self.is_over = False
        """Whether the request has ended: the response is ready, or the client has disconnected."""
        result.add_done_callback(self._on_done)

    def cancel(self) -> None:
        """Cancel the request, because its client has disconnected."""
        self._result.cancel()

    def over(self) -> "asyncio.Future[None]":
        """Return a future that is done once the request is over. Call it only before that."""
        self._over = asyncio.get_running_loop().create_future()
        return self._over

    def _on_done(self, done: Pending[Any]) -> None:
        self.is_over = True
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
        head, dispatcher = self._head, self._dispatcher
        shared = dispatcher.shared
        shared.in_flight.leave(self._holder, head.body_bytes)
        shared.connections.rest(self._connection)
        # Status 499 is nginx's for "the client closed the connection". There is no response to send.
        status = 499
        answer = large = b""
        if not done.cancelled():
            status, answer, large = self._answer(done)
        # Send the response before metrics and the access log, so that the client does not wait for them.
        self._connection.finish_quick(answer, large)
        seconds = asyncio.get_running_loop().time() - self._started_s
        dispatcher.observe(head.route, status, seconds)
        if dispatcher.is_logged(status):
            dispatcher.log_access(
                head.method,
                head.raw_path,
                status,
                seconds,
                remote=remote_of(self._connection.peername),
                request_id=self._request_id,
                principal=head.principal,
            )
        if done.cancelled():
            # No response was sent. Close the connection, as after a cancelled handler, so that no client waits for one.
            self._connection.force_close()

    def _answer(self, done: Pending[Any]) -> tuple[int, bytes, bytes]:
        handler = self._head.handler
        own = {"X-Request-Id": self._request_id, "Server": SERVER}
        try:
            result = done.result()
            body = handler.encode(result)
        except Exception as error:  # noqa: BLE001 - the last resort of a server: never half an answer
            return self._refusal(error, own)
        own.update(handler.headers_of(result))
        if len(body) > COPIED_BYTES_MAX:
            return 200, encode_head(200, "OK", len(body), handler.content_type, own), body
        return 200, encode_answer(200, "OK", body, handler.content_type, own), b""

    def _refusal(self, error: Exception, own: Mapping[str, str]) -> tuple[int, bytes, bytes]:
        refusal = self._dispatcher.failure(error, self._head.route, self._request_id)
        return refusal.status, encode_refusal(refusal, own), b""


def encode_refusal(refusal: web.Response, own: Mapping[str, str]) -> bytes:
    """Return an error response as bytes, to be sent without aiohttp."""
    assert isinstance(refusal.body, bytes), "errors are ready bytes"
    others = {k: v for k, v in refusal.headers.items() if k not in _OF_BODY}
    phrase = HTTPStatus(refusal.status).phrase
    content_type = refusal.headers["Content-Type"]
    return encode_answer(refusal.status, phrase, refusal.body, content_type, {**others, **own})


_OF_BODY = frozenset({"Content-Type", "Content-Length"})


def without_key(raw: bytes) -> tuple[bytes, str | None]:
    """Return the head of a request without its ``Idempotency-Key`` line, and the key; None without a key.

    The heads of one client usually differ only in this header. So heads are remembered without it.
    """
    at = raw.find(_KEY_LINE)
    if at < 0:
        return raw, None
    begin = at + len(_KEY_LINE)
    end = raw.find(b"\r\n", begin)
    if end < 0:
        end = len(raw)
    return raw[:at] + raw[end:], raw[begin:end].decode("latin-1")


def without_query(raw: bytes) -> tuple[bytes, str | None]:
    """Return the head of a ``GET`` without its query, and the query; None without one."""
    end = raw.find(b" HTTP/1.1\r\n")
    at = raw.find(b"?", 0, max(end, 0))
    if at < 0:
        return raw, None
    return raw[:at] + raw[end:], raw[at + 1 : end].decode("latin-1")


def without_varying(raw: bytes) -> tuple[bytes, str | None]:
    """Return the head of a request without the part that differs between requests, and that part."""
    return without_query(raw) if raw.startswith(b"GET ") else without_key(raw)


def _is_clear(message: ParsedHead, *, has_varying: bool) -> bool:
    """Return whether the lane knows all headers of a head, and may keep its connection open."""
    if message.version != HttpVersion11 or message.should_close:
        return False
    names = {name.lower() for name in message.headers}
    # Without repeated headers, there are as many names as headers. Only the usual way can judge repeated ones.
    if names & _TELLING or len(names) != len(message.headers):
        return False
    if message.method == "GET":
        return _KEY_NAME not in names
    # An idempotency key may be written in another way than ``without_key`` knows.
    return "content-type" in names and (_KEY_NAME in names) == has_varying


def remote_of(peername: object) -> str | None:
    """Return the IP address in a transport's ``peername``; None if it has none."""
    return str(peername[0]) if isinstance(peername, tuple) else None


def _identity(connection: Resting) -> bytes:
    """Return the digest of the client's certificate, which authenticates requests without a header; empty: none."""
    certificate = connection.certificate
    return b"" if certificate is None else certificate.digest


class QuickLane:
    """The heads that one server remembers. Used on its event loop."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._callers = dispatcher.shared.ports.callers
        self._quotas = dispatcher.shared.quotas
        self._heads: dict[tuple[bytes, bytes], Head] = {}
        """Heads by digest of the connection's certificate and bytes of the head: both identify the caller."""

    def is_of_proxy(self, peername: object) -> bool:
        """Return whether a connection comes from a trusted proxy, which names the client's address in a header."""
        proxies = self._dispatcher.proxies
        return bool(proxies) and proxies.trusts(remote_of(peername) or "")

    def begin(self, connection: Resting, data: bytes) -> QuickRequest | None:
        """Start a request that arrived on an idle connection, if the lane can take it.

        Returns:
            The request, or None: it must go the usual way, and the lane has done nothing.
        """
        found = self._find(connection, data)
        if found is None:
            return None
        head, varying, body = found
        in_flight = self._dispatcher.shared.in_flight
        started_s = asyncio.get_running_loop().time()
        holder = head.principal or remote_of(connection.peername) or ""
        # If there is no room, the usual way decides whether to refuse the request.
        if not in_flight.has_room_for(holder, head.body_bytes, started_s):
            return None
        # If the quota is used up, the usual way waits. The lane has no task that could wait.
        payer = None
        if self._quotas.is_on:
            payer = self._payer(head, connection, started_s)
            if payer is None:
                return None
        # Tasks that the handler starts inherit the principal. Reset it afterwards, because this code runs in a callback
        # of the event loop, whose context is shared by all callers.
        asked = on_behalf.principal.set(head.principal)
        try:
            result = head.handler.start(body, varying)
        except MilenaError:
            return None  # the usual way finds the same fault and says what is wrong
        except Exception as error:  # noqa: BLE001 - answered as any; some of it may be written, so it is not tried again
            result = Pending()
            result.set_exception(error)
        finally:
            on_behalf.principal.reset(asked)
        if result is None:
            return None
        # Charge only now. A request that was given up above is charged by the usual way.
        if payer is not None:
            self._quotas.charge(payer, started_s, requests=1, bytes_in=head.body_bytes)
        return QuickRequest(
            self._dispatcher, connection, head, result, started_s=started_s, holder=holder
        )

    def _find(self, connection: Resting, data: bytes) -> tuple[Head, str | None, bytes] | None:
        """Return what is known of the request's head, its varying part, and the body; None: go the usual way."""
        end = data.find(HEAD_END)
        # Look for the whole head first, and remove the varying part only if it is unknown. To search every head for a
        # key made writes without one an eighth slower.
        known, varying = (_identity(connection), data[:end]), None
        head = self._heads.get(known)
        if head is None:
            raw, varying = without_varying(data[:end])
            known = (_identity(connection), raw)
            head = self._heads.get(known)
        # The bytes must be exactly one request. If there are fewer, the body is still arriving. If there are more, they
        # may be another request, which must wait for this one.
        if head is None or len(data) - end - len(HEAD_END) != head.body_bytes:
            return None
        # Check this for every request. Otherwise a caller could continue to use a right after it was revoked
        # (docs/guarantees.md).
        if not self._is_still(head.caller, connection):
            del self._heads[known]
            return None
        if head.method == "GET" and not self._can_judge(head, varying or ""):
            return None
        return head, varying, data[end + len(HEAD_END) :]

    def _can_judge(self, head: Head, query: str) -> bool:
        """Return whether the query of a fetch is valid and plain, and no quota counts the bytes of its response."""
        if self._quotas.is_on or _PLAIN_QUERY.fullmatch(query) is None:
            return False
        try:
            check_query(head.route, query)
        except MilenaError:
            return False
        return True

    def refuse(self, error: BaseException) -> bytes:
        """Report an unexpected error before a request was recognised; return the response for the client."""
        dispatcher = self._dispatcher
        request_id = dispatcher.next_request_id()
        refusal = dispatcher.failure(error, None, request_id)
        own = {"X-Request-Id": request_id, "Server": SERVER, "Connection": "close"}
        return encode_refusal(refusal, own)

    def _payer(self, head: Head, connection: Resting, now_s: float) -> Payer | None:
        """Return the caller to whose quota a request counts.

        Return None if the quota is used up, or if the connection is not counted for this caller yet.
        """
        remote = remote_of(connection.peername)
        payer = payer_of(head.principal, remote, head.client_id)
        bound = self._quotas.bound(payer, QuotaKey.CONNECTION_COUNT)
        connections = self._dispatcher.shared.connections
        # The usual way counts the connection for this caller, or refuses it if the caller has too many.
        if bound is not None and not connections.is_of(connection, bound.owner):
            return None
        return None if self._quotas.wait_s(payer, now_s) > 0 else payer

    def _is_still(self, caller: Caller, connection: Resting) -> bool:
        """Return whether the caller is unchanged since the head was remembered, and has this connection's address."""
        if not self._callers.holds(caller):
            return False
        return not caller.host or caller.host == remote_of(connection.peername)

    def learn(self, raw: bytes, message: ParsedHead, body_bytes: int, connection: Resting) -> None:
        """Remember a head that the parser has just read from ``raw``, if the lane supports it."""
        if len(raw) > HEAD_BYTES_MAX or body_bytes > BODY_BYTES_MAX:
            return
        # Of the many requests with ``GET``, look only at those that can be fetches of stored batches.
        is_fetch = message.method == "GET" and message.headers.get("Accept") == BATCH_TYPE
        if message.method != "POST" and not (is_fetch and not body_bytes):
            return
        # The number of lines must be the number of headers that the parser found. With a folded line or a bare LF,
        # these bytes could mean something else to the parser.
        lines = len(message.raw_headers)
        if raw.count(b"\r\n") != lines or raw.count(b"\n") != lines:
            return
        self._remember(raw, message, body_bytes, connection)

    def _remember(
        self, raw: bytes, message: ParsedHead, body_bytes: int, connection: Resting
    ) -> None:
        raw, varying = without_varying(raw)
        known = (_identity(connection), raw)
        if known in self._heads or not _is_clear(message, has_varying=varying is not None):
            return
        try:
            found = self._read(message, connection)
        except (MilenaError, web.HTTPException):
            return
        if found is None:
            return
        route, handler, caller = found
        # Drop the oldest head. Otherwise a client with a new head in every request would fill the memory.
        if len(self._heads) >= HEADS_MAX:
            del self._heads[next(iter(self._heads))]
        self._heads[known] = Head(
            message.method,
            message.url.raw_path,
            route,
            handler,
            body_bytes,
            caller,
            caller.known_principal,
            message.headers.get(CLIENT_ID_HEADER),
        )

    def _read(
        self, message: ParsedHead, connection: Resting
    ) -> tuple[Route, QuickHandler, Caller] | None:
        """Return the route, the handler and the caller of a head; None if the lane does not support the head.

        Raises:
            MilenaError: the head is invalid, or its caller does not have the rights.
        """
        match = self._dispatcher.find(message.method, message.url.raw_path)
        query = message.url.raw_query_string
        check_query(match.route, query)
        prepare, headers = (
            match.route.prepare,
            {name.lower(): value for name, value in message.headers.items()},
        )
        if prepare is None:
            return None
        caller = self._allowed(match.route.access, match.names, headers, connection)
        if caller is None:
            return None
        self._dispatcher.hosts.check_stranger(caller.known_principal, headers.get("host"))
        handler = prepare(self._dispatcher.shared.ports, caller, match.names, query, headers)
        return None if handler is None else (match.route, handler, caller)

    def _allowed(
        self,
        access: Access,
        names: Mapping[str, str],
        headers: Mapping[str, str],
        connection: Resting,
    ) -> Caller | None:
        """Return the caller of a head if it has the rights; None if that is not certain without a wait.

        Raises:
            MilenaError: the credentials are wrong or missing.
        """
        caller = self._callers.known(
            headers.get("authorization"),
            remote_of(connection.peername) or "",
            connection.certificate,
        )
        if caller is None or caller.version == OPEN:
            return caller
        needs = access.needs
        if needs is None:
            # The needed rights depend on the body. The quick handler checks them for each body.
            return caller if access.has_more else None
        if access.has_more:
            return None
        # In the mode that only logs refusals, each request of a caller without the right must be logged. So such
        # requests go the usual way.
        is_allowed = caller.may(needs.operation, needs.resource_type, names[needs.path_name])
        return caller if is_allowed else None
