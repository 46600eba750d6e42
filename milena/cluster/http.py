"""HTTP calls to nodes, and the meaning of their failures. All calls of the client go through this module.

If a connection is refused, nothing was sent. If a connection breaks or times out after a request was sent, the node may
have carried the request out. If the request changes something, the call then raises ``UnknownResultError``. So a call
is tried at the next node only if nothing was sent, or if a repeat is harmless.

Responses are not trusted. A body is read only up to the call's limit. A body that is not JSON of the right shape raises
``UnexpectedAnswerError``. Redirects are not followed, so that no server can send a write elsewhere. Credentials are
sent only to nodes that ``NodeRoutes`` allows.
"""

import asyncio
import errno
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import quote, urlencode

from milena.cluster.credentials import ANONYMOUS, Authorization, Credentials
from milena.cluster.first_contact import (
    CONNECT_TIMEOUT_MS,
    CONNECT_TIMEOUT_MS_MAX,
    FirstContact,
)
from milena.cluster.http_answer import AnswerTooLargeError, BrokenAnswerError
from milena.cluster.http_connection import (
    ConnectError,
    ConnectionEndedError,
    HttpConnections,
    HttpRequest,
    Origin,
)
from milena.cluster.routing import NodeRoutes, normalise_url, without_user
from milena.errors import (
    AnswerError,
    ClientClosedError,
    ConditionFailedError,
    CredentialsRefusedError,
    GroupNotEmptyError,
    MemberFencedError,
    MemberUnknownError,
    NeverReachedError,
    NotNowError,
    NotPermittedError,
    OutOfRangeError,
    ProducerFencedError,
    SequenceRefusedError,
    ServerFailedError,
    StaleMemberError,
    TargetExistsError,
    TargetNotFoundError,
    TooLargeError,
    TransactionAbortedError,
    UnexpectedAnswerError,
    UnknownResultError,
    UnreachableError,
)
from milena.fields import Json
from milena.model.clock import Clock, SystemClock
from milena.model.quotas import CLIENT_ID_HEADER
from milena.model.secret import Secret
from milena.records import check_range

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
"""Timeout of connecting to one node. The rest of a call's timeout is left for the response."""

ATTEMPTS_TIMES = 2
"""A call that tries several nodes takes at most this many of its timeouts in total."""

ANSWER_BYTES_MAX = 64 << 20
"""The most bytes of a JSON response: enough for the metadata of more than 100,000 partitions."""

CONNECTIONS_MAX = 1_024
"""The most connections of one session, over all nodes. Callers limit their calls by partitions, far below this."""

JSON_TYPE = "application/json"

_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""The form of the request ids that nodes create. An id of another form is left out of messages."""

_ERRNO = re.compile(r"\[Errno ([0-9]+)\]")
_NO_NAME = re.compile(r"\[Errno -[0-9]+\] (.*)")
"""Pattern of an error of ``getaddrinfo``. Only its error numbers are negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """One request to any node. ``path`` is percent-encoded and includes the query. The body may hold secrets."""

    method: str
    path: str
    body: bytes | None = field(default=None, repr=False)
    content_type: str = JSON_TYPE
    accept: str = "application/json, */*;q=0.5"
    answer_bytes_max: int = ANSWER_BYTES_MAX
    timeout_s: float | None = None
    """The timeout in seconds; None: the session's timeout."""
    if_match: int | None = None
    """The write is refused unless this is the partition's next offset. None: no condition."""
    transaction: str | None = None
    """Header value that names the transaction of the write; None: no transaction."""
    idempotency_key: str | None = None
    """The key by which a repeated write is recognised: visible ASCII, at most 255 characters."""
    is_repeatable: bool = False
    """True if a repeat is harmless. The call may then go to another node after it was sent to one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAnswer:
    """A response with any status, from the node at ``url``; the body is not parsed."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    url: str


class HttpSession:
    """Keep-alive connections to the nodes of a cluster. An asynchronous context manager, used from one event loop."""

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        timeout_s: float,
        credentials: Credentials = ANONYMOUS,
        clock: Clock | None = None,
        connect_timeout_ms: float = CONNECT_TIMEOUT_MS,
    ) -> None:
        check_range("connect_timeout_ms", connect_timeout_ms, 0, CONNECT_TIMEOUT_MS_MAX)
        if not isinstance(credentials, Credentials):
            raise TypeError(f"credentials are milena.Credentials, not {type(credentials).__name__}")
        self.routes = NodeRoutes(url, is_guarded=credentials.is_guarded)
        self._credentials = credentials
        self._authorization = Authorization(credentials)
        self._timeout_s = timeout_s
        self._clock = SystemClock() if clock is None else clock
        self._connections: HttpConnections | None = None
        self._origins: dict[str, Origin] = {}
        self._answered: set[str] = set()
        """URLs from which a response in HTTP has arrived, with any status."""
        self._contact = FirstContact(connect_timeout_ms)

    @property
    def url(self) -> str:
        """The URL of the first node that the session was given."""
        return self.routes.seeds[0]

    async def __aenter__(self) -> Self:
        self._connections = HttpConnections(
            clock=self._clock,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            count_max=CONNECTIONS_MAX,
            make_tls=self._credentials.tls_context,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connections is not None:
            self._connections.close()
            self._connections = None

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Send a GET; return the JSON of the response.

        Raises:
            UnreachableError: no response.
            AnswerError: the node refused.
        """
        return await self._json(
            HttpCall(method="GET", path=path + _query(params), is_repeatable=True)
        )

    async def post(self, path: str, body: Json, *, only: str | None = None) -> Json:
        """Send a POST that is never repeated; return the JSON. ``only`` is the URL of the one node to send it to.

        Raises:
            UnreachableError: nothing was sent.
            UnknownResultError: the change may or may not have happened.
            AnswerError: the node refused.
        """
        call = HttpCall(method="POST", path=path, body=json.dumps(body).encode())
        if only is None:
            return await self._json(call)
        return json_of(await self._send_to(only, call, self._timeout_s), f"POST {path}")

    async def patch(self, path: str, body: Json) -> Json:
        """Send a PATCH; return the JSON of the response. It may be repeated, because it sets values.

        Raises:
            UnreachableError: no response.
            AnswerError: the node refused.
        """
        call = HttpCall(
            method="PATCH", path=path, body=json.dumps(body).encode(), is_repeatable=True
        )
        return await self._json(call)

    async def put(self, path: str, body: Json, *, is_repeatable: bool = True) -> Json:
        """Send a PUT; return the JSON of the response.

        A repeatable PUT raises the errors of ``patch``, another one those of ``post``.
        """
        call = HttpCall(
            method="PUT", path=path, body=json.dumps(body).encode(), is_repeatable=is_repeatable
        )
        return await self._json(call)

    async def delete(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Send a DELETE that is never repeated; return the JSON. It raises the errors of ``post``."""
        return await self._json(HttpCall(method="DELETE", path=path + _query(params)))

    async def send(self, call: HttpCall, *, preferred: str | None = None) -> RawAnswer:
        """Return the response of the preferred node, or of the first other one that can be reached.

        Raises:
            UnreachableError: no node could be reached, or the call is repeatable and no node responded.
            NeverReachedError: no node has responded to this session within ``connect_timeout_ms``.
            UnknownResultError: the call was sent, and no response arrived.
            UnexpectedAnswerError: the response is larger than ``answer_bytes_max``, or is encoded.
            CredentialsRefusedError, NotPermittedError: the node responded with 401 or 403.
            BadCredentialsError: the credentials name a file that cannot be used.
            ClientClosedError: the session was not opened, or is closed.
        """
        failures: list[UnreachableError] = []
        timeout_s = self._timeout_s if call.timeout_s is None else call.timeout_s
        now_ms = self._clock.now_ms()
        deadline_ms = now_ms + ATTEMPTS_TIMES * timeout_s * 1000
        if not self._contact.is_made:
            self._tell_unreached()
            deadline_ms = min(deadline_ms, self._contact.deadline_ms(now_ms))
        for url in self.routes.order(preferred, now_ms):
            left_s = (deadline_ms - self._clock.now_ms()) / 1000
            if left_s <= 0:
                break
            try:
                answer = await self._send_to(url, call, min(timeout_s, left_s))
                self._check_contact(answer, call)
            except UnreachableError as error:
                self.routes.mark_bad(url, self._clock.now_ms())
                failures.append(error)
            except UnknownResultError:
                self.routes.mark_bad(url, self._clock.now_ms())
                raise
            else:
                self.routes.mark_good(url)
                return answer
        assert failures, "there is always a node to ask"
        if not self._contact.is_made:
            raise self._unreached(failures) from failures[0]
        # The first failure comes from the node that was preferred.
        raise failures[0]

    def _tell_unreached(self) -> None:
        """Log once why earlier calls failed, because the client tries again. The last failure is raised, not logged."""
        reasons = self._contact.news()
        if reasons is not None:
            logger.warning("no node has responded so far, trying again: %s", reasons)

    def _unreached(self, failures: Sequence[UnreachableError]) -> UnreachableError:
        """Return the error of a call while no node has ever responded; its message has the failure of each address."""
        reasons = "; ".join(error.message for error in failures)
        if not self._contact.on_failure(self._clock.now_ms(), reasons):
            return UnreachableError(reasons)
        return NeverReachedError(
            f"no node has responded within {self._contact.timeout_ms:g} ms: {reasons}. Check the addresses, or raise "
            "connect_timeout_ms"
        )

    def _check_contact(self, answer: RawAnswer, call: HttpCall) -> None:
        """Note that a node responded. Before that, treat a failure from another kind of server as no response.

        Raises:
            UnreachableError: a proxy without a node behind it, or another server, responded with a failure.
        """
        if self._contact.is_made:
            return
        if answer.status < 500 or b'"error_code"' in answer.body:
            self._contact.is_made = True
        elif call.is_repeatable:
            raise UnreachableError(
                f"{answer.url} answers HTTP {answer.status}, and not as a Milena node"
            )

    async def ask(self, url: str, call: HttpCall) -> RawAnswer:
        """Send a call to the node at ``url`` only; return its response. The session need not know this URL.

        Raises:
            ClientError: the errors of ``send``.
        """
        timeout_s = self._timeout_s if call.timeout_s is None else call.timeout_s
        return await self._send_to(normalise_url(url), call, timeout_s)

    async def _json(self, call: HttpCall) -> Json:
        return json_of(await self.send(call), f"{call.method} {call.path}")

    async def _send_to(self, url: str, call: HttpCall, timeout_s: float) -> RawAnswer:
        if self._connections is None:
            raise ClientClosedError(
                "the client is not open: use it in a block, async with Client(...) as client"
            )
        origin = self._origin(url)
        if not self.routes.may_ask(url):
            raise UnreachableError(
                f"{url} was not asked: over plain http, credentials go only to hosts that the client was given as "
                "http://; give it this one, too, or use https"
            )
        shown = self._authorization.value()
        answer = await self._send_as(shown, origin, url, call, timeout_s)
        if answer.status == 401:
            # A node responds with 401 before it does anything. So any call may be sent again.
            renewed = self._authorization.after_refusal(shown)
            if renewed is not None:
                answer = await self._send_as(renewed, origin, url, call, timeout_s)
        if answer.status in (401, 403):
            raise self._refusal(answer, f"{call.method} {call.path}")
        return answer

    def _refusal(self, answer: RawAnswer, what: str) -> AnswerError:
        try:
            json_of(answer, what)
        except (CredentialsRefusedError, NotPermittedError) as error:
            advice = self._credentials.advice(answer.status)
            return error.reworded(f"{error.message.rstrip('.')}; {advice}")
        raise AssertionError(f"HTTP {answer.status} is a refusal")

    async def _send_as(
        self,
        shown: Secret | None,
        origin: Origin,
        url: str,
        call: HttpCall,
        timeout_s: float,
    ) -> RawAnswer:
        assert self._connections is not None, "_send_to checks it"
        request = HttpRequest(
            method=call.method,
            path=call.path,
            headers=self._headers(call),
            body=call.body,
            answer_bytes_max=call.answer_bytes_max,
            authorization=shown,
        )
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._connections.ask(
                    origin, request, is_repeatable=call.is_repeatable
                )
        except ConnectError as error:
            reason = f"{_reason(error.__cause__)}{self._suspicion(url, error.__cause__)}"
            raise UnreachableError(f"cannot reach {url}: {reason}") from error
        except AnswerTooLargeError as error:
            raise UnexpectedAnswerError(
                f"{call.method} {call.path}: the answer of {url} has more than "
                f"{call.answer_bytes_max} bytes"
            ) from error
        except (ConnectionEndedError, BrokenAnswerError, TimeoutError) as error:
            reason = f"{_reason(error)}{self._suspicion(url, error)}"
            message = f"no answer from {url} to {call.method} {call.path}: {reason}"
            if call.is_repeatable:
                raise UnreachableError(message) from error
            raise UnknownResultError(message, status=504) from error
        self._answered.add(url)
        coding = answer.headers.get("Content-Encoding", "identity")
        if coding != "identity":
            raise UnexpectedAnswerError(
                f"{call.method} {call.path}: {url} sent a body in {coding!r}, which was not asked for"
            )
        return RawAnswer(status=answer.status, headers=answer.headers, body=answer.body, url=url)

    def _headers(self, call: HttpCall) -> dict[str, str]:
        headers = {"Accept": call.accept}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        if call.if_match is not None:
            headers["If-Match"] = f'"{call.if_match}"'
        if call.transaction is not None:
            headers["Milena-Transaction"] = call.transaction
        if call.idempotency_key is not None:
            headers["Idempotency-Key"] = call.idempotency_key
        if self._credentials.client_id is not None:
            headers[CLIENT_ID_HEADER] = self._credentials.client_id
        return headers

    def _origin(self, url: str) -> Origin:
        found = self._origins.get(url)
        if found is None:
            try:
                found = self._origins[url] = Origin.of(url)
            except ValueError as error:
                raise UnreachableError(
                    f"{without_user(url)} is not a URL of a node: {error}"
                ) from error
        return found

    def _suspicion(self, url: str, error: BaseException | None) -> str:
        """Return a hint at the likely cause of a failed connection, for the error message; empty without one.

        A TLS port closes a connection of plain HTTP. A node that requires client certificates closes, under TLS 1.3,
        the connection of a client without one after the handshake. Both look to the client as if the node had crashed.
        """
        if getattr(error, "verify_code", None) in _UNKNOWN_AUTHORITY:
            ca = self._credentials.ca
            trusted = "this machine" if ca is None else ca
            return f"; {trusted} has no authority that signed it: name a file of it as ca (--ca on the command line)"
        if not isinstance(error, ConnectionEndedError) or url in self._answered:
            return ""
        if self._origin(url).scheme == "https" and self._credentials.cert is not None:
            return f"; the node may not take the client certificate {self._credentials.cert}"
        if self._origin(url).scheme == "https":
            return "; the node may want a client certificate, and this client has none to show"
        return "; the port may want https://, or be the one on which nodes talk to each other"


def segment(name: str) -> str:
    """Return a name, percent-encoded as one segment of a path.

    Raises:
        TargetNotFoundError: the name is empty; the path would then be that of another endpoint.
        TypeError: the name is no ``str``.
    """
    if not isinstance(name, str):
        raise TypeError(f"a name is text, not {type(name).__name__}: {name!r}")
    if not name:
        raise TargetNotFoundError("'' is not a name; give one", status=404)
    return quote(name, safe="")


def _query(params: Mapping[str, str] | None) -> str:
    return "" if not params else f"?{urlencode(params)}"


def json_of(answer: RawAnswer, what: str) -> Json:
    """Return the JSON of a response, or raise the error that its status and body stand for."""
    return read_answer(
        answer.status,
        answer.body,
        f"{what} at {answer.url}",
        kind=answer.headers.get("Milena-Error"),
        request_id=answer.headers.get("X-Request-Id"),
    )


def read_answer(
    status: int, raw: bytes, what: str, *, kind: str | None = None, request_id: str | None = None
) -> Json:
    """Return the JSON of a response, or raise the error that its status and body stand for.

    Args:
        status: the HTTP status.
        raw: the body.
        what: the request, for the message of an error.
        kind: the header ``Milena-Error``, the class of the error on the node.
        request_id: the header ``X-Request-Id``.
    """
    try:
        body: Json = json.loads(raw) if raw else None
    # Deeply nested JSON raises RecursionError.
    except (ValueError, RecursionError) as error:
        if status < 500 and status not in (401, 403):
            raise UnexpectedAnswerError(
                f"{what}: HTTP {status} with a body that is not JSON; is this a Milena node?"
            ) from error
        body = None
    if 200 <= status < 300:
        return body
    if status < 400:
        raise UnexpectedAnswerError(f"{what}: HTTP {status}; use the URL that it redirects to")
    fields = body if isinstance(body, dict) else {}
    code, message = fields.get("error_code"), fields.get("message")
    if status == 404 and kind is None and code is None:
        # Every 404 of a node has an error_code. Without one, another server sent it, and the topic may exist.
        raise UnexpectedAnswerError(
            f"{what}: HTTP 404 without an error_code; is this a Milena node?"
        )
    text = message if isinstance(message, str) else f"{what}: HTTP {status}"
    error_code = code if isinstance(code, int) else None
    if request_id is not None and not _SANE_REQUEST_ID.fullmatch(request_id):
        request_id = None
    refusal = _answer_error(status, text, error_code, kind)(
        text, status=status, error_code=error_code, request_id=request_id
    )
    end_offset = fields.get("end_offset")
    if isinstance(refusal, ConditionFailedError) and isinstance(end_offset, int):
        refusal.end_offset = end_offset
    raise refusal


_BY_KIND: dict[str | None, type[AnswerError]] = {
    "offset_out_of_range": OutOfRangeError,
    "precondition_failed": ConditionFailedError,
    "topic_exists": TargetExistsError,
    "invalid_producer": SequenceRefusedError,
    "stale_producer_epoch": ProducerFencedError,
    "transaction_aborted": TransactionAbortedError,
    "member_not_found": MemberUnknownError,
    "member_fenced": MemberFencedError,
    "stale_member_epoch": StaleMemberError,
    "group_not_empty": GroupNotEmptyError,
}

_BY_STATUS: dict[int, type[AnswerError]] = {
    401: CredentialsRefusedError,
    403: NotPermittedError,
    404: TargetNotFoundError,
    409: TargetExistsError,
    413: TooLargeError,
    504: UnknownResultError,
}


def _answer_error(
    status: int, message: str, error_code: int | None, kind: str | None
) -> type[AnswerError]:
    if kind in _BY_KIND:
        return _BY_KIND[kind]
    if status == 409 and kind is not None:
        # A 409 has many reasons. An existing topic is in ``_BY_KIND``; without a kind, 409 would be read as that.
        return AnswerError
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    # As in Confluent's API, an existing topic is a 400. Only the message distinguishes it from other ones.
    if status == 400 and "already exists" in message:
        return TargetExistsError
    # A node that sends one of these statuses with an error_code has written nothing. A proxy in front of a node also
    # sends 503, without a code, and then the write may have happened.
    if status in (408, 429, 503) and error_code is not None:
        return NotNowError
    return ServerFailedError if status >= 500 else AnswerError


_UNKNOWN_AUTHORITY = (18, 19, 20, 21)
"""Codes of ``ssl.SSLCertVerificationError`` for certificates that are self-signed or of an unknown authority."""
_NO_TLS_REASONS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""Reasons of ``ssl.SSLError``, by version of OpenSSL, if the server did not respond to the handshake in TLS."""


def _reason(error: BaseException | None) -> str:
    if isinstance(error, BrokenAnswerError):
        return f"{error}; is this a Milena node?"
    unknown = _NO_NAME.fullmatch(str(error))
    if unknown is not None:
        return f"its host name cannot be resolved: {unknown[1]}"
    # asyncio's text has one or several addresses: "[Errno 111] Connect call failed ('127.0.0.1', 8082)".
    numbers = set(_ERRNO.findall(str(error)))
    if numbers == {str(errno.ECONNREFUSED)}:
        return "connection refused"
    # Look at the attribute instead of the class, so that a client of plain HTTP need not import ``ssl``.
    if getattr(error, "reason", None) in _NO_TLS_REASONS:
        return "it answers without TLS: use http://"
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)
