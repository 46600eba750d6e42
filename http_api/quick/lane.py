"""A quick lane for small requests that repeat: no request object, no headers read twice, and no task for records.

A producer sends the same head with every record. The bytes of a head alone determine its meaning. So aiohttp's parser
and the route's own ``prepare`` read a head once, and the lane remembers the result. A later request takes the lane if
it has the same head, arrives completely and its connection is idle. The lane passes it to the node directly, and writes
the response when the node calls back.

**Every other request goes the usual way**, before the lane has done anything. That includes an unknown head, a body in
pieces, a request behind another, and a body that the route refuses. The usual way finds the same fault and reports it.

The lane keeps the dispatcher's promises: bounds on requests in flight, request ids, metrics, the access log, errors in
the API's envelope, and no response for a client that went away.
"""

import asyncio
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
from http_api.quick.parsed_head import ParsedHead
from http_api.quick.separate_requests import HEAD_END
from http_api.serving.connections import Closable
from http_api.serving.dispatch import Dispatcher
from http_api.serving.endpoint import QuickHandler, Route
from http_api.serving.plain_answer import encode_answer
from http_api.serving.quotas import Payer, payer_of
from http_api.serving.unknown import CONDITIONS, TRANSACTION_HEADER, check_query
from milena.model.errors import MilenaError
from milena.model.pending import Pending
from milena.model.quotas import CLIENT_ID_HEADER, QuotaKey

HEADS_MAX = 1024
HEAD_BYTES_MAX = 2048
"""The size of a head that the lane remembers, at most. So all heads together take 2 MB at most."""

BODY_BYTES_MAX = 32 << 10
"""The size of a body in the lane, at most. For a larger body the usual way costs little in comparison."""

_KEY_NAME = "idempotency-key"
_KEY_LINE = b"\r\nIdempotency-Key: "
"""The header as common programs write it. If a proxy writes it in another way, the request goes the usual way."""

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
"""Headers that change how a request is treated, so a head with one of them stays out of the lane."""


@dataclass(frozen=True, slots=True)
class Head:
    """A request of the lane, as the bytes of its head determine it."""

    method: str
    raw_path: str
    route: Route
    handler: QuickHandler
    body_bytes: int
    caller: Caller
    """The sender, who has the rights that the request needs."""
    client_id: str | None


class Resting(Closable, Protocol):
    """A connection as the lane sees it."""

    certificate: ClientCertificate | None
    """The client's certificate, if any."""

    @property
    def peername(self) -> object:
        """The client's address, as the transport gives it."""

    def finish_quick(self, answer: bytes) -> None:
        """End the request and send ``answer``. An empty ``answer`` sends nothing."""


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
        """The response is ready, or none is needed."""
        result.add_done_callback(self._on_done)

    def cancel(self) -> None:
        """Cancel the request: its client is gone."""
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
        # 499 as proxies log it: the client closed the connection. There is no response to send.
        status = 499
        answer = b""
        if not done.cancelled():
            status, answer = self._answer(done)
        # The client need not wait for metrics and the access log.
        self._connection.finish_quick(answer)
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
                principal=head.caller.known_principal,
            )
        if done.cancelled():
            # As after a cancelled handler: there is no response, so the client would wait for one.
            self._connection.force_close()

    def _answer(self, done: Pending[Any]) -> tuple[int, bytes]:
        handler = self._head.handler
        own = {"X-Request-Id": self._request_id, "Server": SERVER}
        try:
            body = handler.encode(done.result())
        except Exception as error:  # noqa: BLE001 - the last resort of a server: never half an answer
            return self._refusal(error, own)
        if handler.headers:
            own.update(handler.headers)
        return 200, encode_answer(200, "OK", body, handler.content_type, own)

    def _refusal(self, error: Exception, own: Mapping[str, str]) -> tuple[int, bytes]:
        refusal = self._dispatcher.failure(error, self._head.route, self._request_id)
        return refusal.status, encode_refusal(refusal, own)


def encode_refusal(refusal: web.Response, own: Mapping[str, str]) -> bytes:
    """Return an error's response as bytes that bypass aiohttp."""
    assert isinstance(refusal.body, bytes), "errors are ready bytes"
    others = {k: v for k, v in refusal.headers.items() if k not in _OF_BODY}
    phrase = HTTPStatus(refusal.status).phrase
    content_type = refusal.headers["Content-Type"]
    return encode_answer(refusal.status, phrase, refusal.body, content_type, {**others, **own})


_OF_BODY = frozenset({"Content-Type", "Content-Length"})


def without_key(raw: bytes) -> tuple[bytes, str | None]:
    """Return the head of a request without its ``Idempotency-Key`` line, and the key; None without a key.

    A client's requests usually differ only in this header. So a head without it is found among the heads that this
    connection has parsed before.
    """
    at = raw.find(_KEY_LINE)
    if at < 0:
        return raw, None
    begin = at + len(_KEY_LINE)
    end = raw.find(b"\r\n", begin)
    if end < 0:
        end = len(raw)
    return raw[:at] + raw[end:], raw[begin:end].decode("latin-1")


def remote_of(peername: object) -> str | None:
    """Return the address in a transport's ``peername``, if it has one."""
    return str(peername[0]) if isinstance(peername, tuple) else None


def _identity(connection: Resting) -> bytes:
    """Return the digest of the connection's certificate: the identity that it has without any header."""
    certificate = connection.certificate
    return b"" if certificate is None else certificate.digest


class QuickLane:
    """The heads that one server knows. Belongs to its event loop."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._callers = dispatcher.shared.ports.callers
        self._quotas = dispatcher.shared.quotas
        self._heads: dict[tuple[bytes, bytes], Head] = {}
        """The key is the connection's certificate and the head. Only both together determine the sender."""

    def is_of_proxy(self, peername: object) -> bool:
        """Return whether a connection is a trusted proxy's, whose heads give the client's address."""
        proxies = self._dispatcher.proxies
        return bool(proxies) and proxies.trusts(remote_of(peername) or "")

    def begin(self, connection: Resting, data: bytes) -> QuickRequest | None:
        """Take a request that arrived completely on an idle connection.

        Returns:
            The request, or None: it goes the usual way, and the lane has written nothing.
        """
        end = data.find(HEAD_END)
        # The head is searched for a key only if it is unknown as it stands. To search and hash each head made plain
        # writes an eighth slower.
        known, idempotency_key = (_identity(connection), data[:end]), None
        head = self._heads.get(known)
        if head is None:
            raw, idempotency_key = without_key(data[:end])
            known = (_identity(connection), raw)
            head = self._heads.get(known)
        # One request exactly: a shorter body is still arriving, and bytes behind it may be a request that must wait its
        # turn.
        if head is None or len(data) - end - len(HEAD_END) != head.body_bytes:
            return None
        # Compared at every request: a revoked right must not outlive the revocation in a remembered head
        # (docs/guarantees.md).
        if not self._is_still(head.caller, connection):
            del self._heads[known]
            return None
        in_flight = self._dispatcher.shared.in_flight
        started_s = asyncio.get_running_loop().time()
        holder = head.caller.known_principal or remote_of(connection.peername) or ""
        # The usual way decides what to refuse when the node is full, and says so.
        if not in_flight.has_room_for(holder, head.body_bytes, started_s):
            return None
        # The usual way can wait for a quota. The lane cannot, because it has no task.
        payer = self._payer(head, connection, started_s) if self._quotas.is_on else None
        if self._quotas.is_on and payer is None:
            return None
        # Tasks that the handler starts inherit this context, as they do below the dispatcher. It is reset because this
        # code runs in the connection's callback, which serves all callers.
        asked = on_behalf.principal.set(head.caller.known_principal)
        try:
            result = head.handler.start(data[end + len(HEAD_END) :], idempotency_key)
        except MilenaError:
            return None  # the usual way finds the same fault and says what is wrong
        except Exception as error:  # noqa: BLE001 - answered as any; some of it may be written, so it is not tried again
            result = Pending()
            result.set_exception(error)
        finally:
            on_behalf.principal.reset(asked)
        # Not before: the usual way charges for a request that it takes over.
        if payer is not None:
            self._quotas.charge(payer, started_s, requests=1, bytes_in=head.body_bytes)
        return QuickRequest(
            self._dispatcher, connection, head, result, started_s=started_s, holder=holder
        )

    def refuse(self, error: BaseException) -> bytes:
        """Return the response to bytes that failed before they were a request. Report the error."""
        dispatcher = self._dispatcher
        request_id = dispatcher.next_request_id()
        refusal = dispatcher.failure(error, None, request_id)
        own = {"X-Request-Id": request_id, "Server": SERVER, "Connection": "close"}
        return encode_refusal(refusal, own)

    def _payer(self, head: Head, connection: Resting, now_s: float) -> Payer | None:
        """Return the client that pays for a request.

        None: its quota is used up, or the connection does not count as the caller's yet.
        """
        remote = remote_of(connection.peername)
        payer = payer_of(head.caller.known_principal, remote, head.client_id)
        bound = self._quotas.bound(payer, QuotaKey.CONNECTION_COUNT)
        connections = self._dispatcher.shared.connections
        # The usual way claims the connection for its owner, or refuses it as one too many.
        if bound is not None and not connections.is_of(connection, bound.owner):
            return None
        return None if self._quotas.wait_s(payer, now_s) > 0 else payer

    def _is_still(self, caller: Caller, connection: Resting) -> bool:
        """Return whether the caller's rights are unchanged since the head was learned, and hold on this connection."""
        if not self._callers.holds(caller):
            return False
        return not caller.host or caller.host == remote_of(connection.peername)

    def learn(self, raw: bytes, message: ParsedHead, body_bytes: int, connection: Resting) -> None:
        """Remember a head that the parser has just read from ``raw``, if the lane can take it."""
        if message.method != "POST" or len(raw) > HEAD_BYTES_MAX or body_bytes > BODY_BYTES_MAX:
            return
        # As many lines as the parser found headers. A folded line or a bare LF would make this another head than the
        # parser saw.
        lines = len(message.raw_headers)
        if raw.count(b"\r\n") != lines or raw.count(b"\n") != lines:
            return
        self._remember(raw, message, body_bytes, connection)

    def _remember(
        self, raw: bytes, message: ParsedHead, body_bytes: int, connection: Resting
    ) -> None:
        raw, idempotency_key = without_key(raw)
        known = (_identity(connection), raw)
        if known in self._heads:
            return
        if message.version != HttpVersion11 or message.should_close:
            return
        names = {name.lower() for name in message.headers}
        # A repeated header has a meaning that only the usual way judges. Hence as many names as headers.
        if names & _TELLING or "content-type" not in names or len(names) != len(message.headers):
            return
        if (_KEY_NAME in names) != (idempotency_key is not None):
            return  # it is written in another way
        try:
            found = self._read(message, connection)
        except (MilenaError, web.HTTPException):
            return
        if found is None:
            return
        route, handler, caller = found
        # Oldest first: a client whose head differs every time must not fill the memory.
        if len(self._heads) >= HEADS_MAX:
            del self._heads[next(iter(self._heads))]
        self._heads[known] = Head(
            message.method,
            message.url.raw_path,
            route,
            handler,
            body_bytes,
            caller,
            message.headers.get(CLIENT_ID_HEADER),
        )

    def _read(
        self, message: ParsedHead, connection: Resting
    ) -> tuple[Route, QuickHandler, Caller] | None:
        """Return the route, the handler and the caller of a head. None: the head is not for the lane.

        Raises:
            MilenaError: the head is at fault, or its caller does not have the rights.
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
        """Return the sender of a head, if the sender has the rights, as far as that is known without waiting.

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
            # The rights depend on the body. A handler that takes the body checks them.
            return caller if access.has_more else None
        if access.has_more:
            return None
        # In the mode that only logs refusals, each request is logged. So a caller without the right stays out of the
        # lane.
        is_allowed = caller.may(needs.operation, needs.resource_type, names[needs.path_name])
        return caller if is_allowed else None
