"""HTTP calls to nodes and what their failures mean; everything of the client goes through here.

A connection that was refused means that nothing was asked. One that broke, or timed out, after a request that
changes something was sent means that nobody knows: that is ``UnknownResultError``, never a plain failure. Hence a
call goes on to the next node by itself only if nothing was sent, or if it changes nothing.

Answers are not trusted: no more of a body is read than the call allows, and what is not JSON of the right shape is
``UnexpectedAnswerError``. Redirects are not followed, for a write must not go to where its sender did not look; and
what tells who the client is goes nowhere that ``NodeRoutes`` does not allow.
"""

import asyncio
import errno
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

from milena.cluster.credentials import ANONYMOUS, Authorization, Credentials
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
    ConditionFailedError,
    CredentialsRefusedError,
    GroupNotEmptyError,
    MemberFencedError,
    MemberUnknownError,
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

__all__ = ["HttpCall", "HttpSession", "RawAnswer", "json_of", "normalise_url", "read_answer"]

CONNECT_TIMEOUT_S = 3.0
"""A node on any sane network accepts within this; the rest of the time limit is for its answer."""

ATTEMPTS_TIMES = 2
"""A call that goes on to other nodes takes at most this many of its time limits in all."""

ANSWER_BYTES_MAX = 64 << 20
"""Of a JSON answer: the metadata of 100,000 partitions and more."""

CONNECTIONS_MAX = 1_024
"""Of one session, over all nodes. Callers bound their calls by partitions, far below this."""

JSON_TYPE = "application/json"

_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""What nodes make; anything else is not shown to people."""

_ERRNO = re.compile(r"\[Errno ([0-9]+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """One request, wherever it is sent. ``path`` is percent-encoded and holds the query; bodies may hold secrets."""

    method: str
    path: str
    body: bytes | None = field(default=None, repr=False)
    content_type: str = JSON_TYPE
    accept: str = "application/json, */*;q=0.5"
    answer_bytes_max: int = ANSWER_BYTES_MAX
    timeout_s: float | None = None
    """None: the session's."""
    if_match: int | None = None
    """The next offset of the partition to write to."""
    transaction: str | None = None
    """The transaction that what is written belongs to."""
    idempotency_key: str | None = None
    """Under which a write is recognised when it comes again: visible ASCII, at most 255 characters."""
    is_repeatable: bool = False
    """Doing it twice is doing it once: it may go to another node after it was sent to one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAnswer:
    """Answer of a node; ``url`` is the node's."""

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
    ) -> None:
        self.routes = NodeRoutes(url, is_guarded=credentials.is_guarded)
        self._credentials = credentials
        self._authorization = Authorization(credentials)
        self._timeout_s = timeout_s
        self._clock = SystemClock() if clock is None else clock
        self._connections: HttpConnections | None = None
        self._origins: dict[str, Origin] = {}
        self._answered: set[str] = set()
        """URLs that have answered in HTTP, however they refused."""

    @property
    def url(self) -> str:
        """The node that the client was told of first."""
        return self.routes.seeds[0]

    async def __aenter__(self) -> Self:
        self._connections = HttpConnections(
            clock=self._clock,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            count_max=CONNECTIONS_MAX,
            make_tls=self._credentials.tls_context,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connections is not None:
            self._connections.close()
            self._connections = None

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Ask; the answer's JSON.

        Raises:
            UnreachableError: no answer.
            AnswerError: the node refused.
        """
        return await self._json(
            HttpCall(method="GET", path=path + _query(params), is_repeatable=True)
        )

    async def post(self, path: str, body: Json, *, only: str | None = None) -> Json:
        """Change something; ``only`` names the one node that may be asked for it.

        Raises:
            UnreachableError: nothing was sent.
            UnknownResultError: it may or may not have happened.
            AnswerError: the node refused.
        """
        call = HttpCall(method="POST", path=path, body=json.dumps(body).encode())
        if only is None:
            return await self._json(call)
        return json_of(await self._send_to(only, call, self._timeout_s), f"POST {path}")

    async def patch(self, path: str, body: Json) -> Json:
        """Change something to what ``body`` says, so that a repeat changes nothing more.

        Raises:
            UnreachableError: no answer.
            AnswerError: the node refused.
        """
        call = HttpCall(
            method="PATCH", path=path, body=json.dumps(body).encode(), is_repeatable=True
        )
        return await self._json(call)

    async def put(self, path: str, body: Json, *, is_repeatable: bool = True) -> Json:
        """Set something to what ``body`` says; raises as ``patch`` does, or as ``post`` where a repeat changes more."""
        call = HttpCall(
            method="PUT", path=path, body=json.dumps(body).encode(), is_repeatable=is_repeatable
        )
        return await self._json(call)

    async def delete(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Remove something; raises as ``post`` does."""
        return await self._json(HttpCall(method="DELETE", path=path + _query(params)))

    async def send(self, call: HttpCall, *, preferred: str | None = None) -> RawAnswer:
        """The answer of the preferred node, or of the first other one that can be reached.

        Raises:
            UnreachableError: no node could be reached, or the call is repeatable and none answered.
            UnknownResultError: it was sent, and the answer did not come.
            UnexpectedAnswerError: an answer above ``answer_bytes_max``, or a redirect.
            CredentialsRefusedError, NotPermittedError: the node answered with 401 or 403.
            BadCredentialsError: what the credentials name cannot be used.
        """
        failure: UnreachableError | None = None
        timeout_s = self._timeout_s if call.timeout_s is None else call.timeout_s
        deadline_ms = self._clock.now_ms() + ATTEMPTS_TIMES * timeout_s * 1000
        for url in self.routes.order(preferred, self._clock.now_ms()):
            left_s = (deadline_ms - self._clock.now_ms()) / 1000
            if left_s <= 0:
                break
            try:
                answer = await self._send_to(url, call, min(timeout_s, left_s))
            except UnreachableError as error:
                self.routes.mark_bad(url, self._clock.now_ms())
                # The first failure is that of the node that should have answered.
                failure = failure or error
            except UnknownResultError:
                self.routes.mark_bad(url, self._clock.now_ms())
                raise
            else:
                self.routes.mark_good(url)
                return answer
        assert failure is not None, "there is always a node to ask"
        raise failure

    async def ask(self, url: str, call: HttpCall) -> RawAnswer:
        """The answer of this one node, which need not be one that the session knows.

        Raises:
            ClientError: as ``send``.
        """
        timeout_s = self._timeout_s if call.timeout_s is None else call.timeout_s
        return await self._send_to(normalise_url(url), call, timeout_s)

    async def _json(self, call: HttpCall) -> Json:
        return json_of(await self.send(call), f"{call.method} {call.path}")

    async def _send_to(self, url: str, call: HttpCall, timeout_s: float) -> RawAnswer:
        origin = self._origin(url)
        if not self.routes.may_ask(url):
            raise UnreachableError(
                f"{url} was not asked: over plain http, credentials go only to hosts that the client was given as "
                "http://; give it this one, too, or use https"
            )
        shown = self._authorization.value()
        answer = await self._send_as(shown, origin, url, call, timeout_s)
        if answer.status == 401:
            # It came before anything was done, whatever was asked for.
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
            told = f"{error.message.rstrip('.')}; {self._credentials.advice(answer.status)}"
            return type(error)(
                told,
                status=error.status,
                error_code=error.error_code,
                request_id=error.request_id,
            )
        raise AssertionError(f"HTTP {answer.status} is a refusal")

    async def _send_as(
        self,
        shown: Secret | None,
        origin: Origin,
        url: str,
        call: HttpCall,
        timeout_s: float,
    ) -> RawAnswer:
        assert self._connections is not None, "use the client as a context manager"
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
            raise UnreachableError(f"cannot reach {url}: {_reason(error.__cause__)}") from error
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
            raise UnknownResultError(message, status=504, error_code=None) from error
        self._answered.add(url)
        coding = answer.headers.get("Content-Encoding", "identity")
        if coding != "identity":
            raise UnexpectedAnswerError(
                f"{call.method} {call.path}: {url} sent a body in {coding!r}, which nobody asked for"
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

    def _suspicion(self, url: str, error: BaseException) -> str:
        """What else a connection that broke may mean; of a node that has answered before, nothing.

        A port that speaks TLS hangs up on plain HTTP, and under TLS 1.3 a node hangs up on a client without a
        certificate after the handshake: for the client both are nodes that ended.
        """
        if not isinstance(error, ConnectionEndedError) or url in self._answered:
            return ""
        if self._origin(url).scheme == "https" and self._credentials.cert is not None:
            return f"; the node may not take the client certificate {self._credentials.cert}"
        if self._origin(url).scheme == "https":
            return "; the node may want a client certificate, and this client has none to show"
        return "; the port may want https, or be the one on which nodes talk to each other"


def _query(params: Mapping[str, str] | None) -> str:
    return "" if not params else f"?{urlencode(params)}"


def json_of(answer: RawAnswer, what: str) -> Json:
    """The JSON of an answer, or the error that it is."""
    return read_answer(
        answer.status,
        answer.body,
        what,
        kind=answer.headers.get("Milena-Error"),
        request_id=answer.headers.get("X-Request-Id"),
    )


def read_answer(
    status: int, raw: bytes, what: str, *, kind: str | None = None, request_id: str | None = None
) -> Json:
    """The JSON of an answer, or the error that it is; headers: ``Milena-Error`` as kind, ``X-Request-Id``."""
    try:
        body: Json = json.loads(raw) if raw else None
    # Deep nesting is a RecursionError.
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
        # The state does not allow it, for one of many causes; what exists already has a kind of its own.
        return AnswerError
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    # Confluent's dialect answers 400 to a topic that exists; ours keeps it, and the sentence tells which 400 it is.
    if status == 400 and "already exists" in message:
        return TargetExistsError
    # Only a node knows that nothing was written; the 503 of a proxy in front of it promises nothing.
    if status in (408, 429, 503) and error_code is not None:
        return NotNowError
    return ServerFailedError if status >= 500 else AnswerError


_NO_TLS_REASONS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""Of an ``ssl.SSLError``: how versions of OpenSSL say that an answer to a handshake is none."""


def _reason(error: BaseException | None) -> str:
    # asyncio's text has an address, or several: "[Errno 111] Connect call failed ('127.0.0.1', 8082)".
    numbers = set(_ERRNO.findall(str(error)))
    if numbers == {str(errno.ECONNREFUSED)}:
        return "connection refused"
    # By name: whoever speaks plain HTTP does without the module of the class.
    if getattr(error, "reason", None) in _NO_TLS_REASONS:
        return "it answers without TLS; the port may want http"
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)
