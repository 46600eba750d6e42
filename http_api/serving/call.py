"""One request in progress, as it is passed to handlers."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from http_api.access.rights import Rights
from http_api.describing.schemas import parse_json, parse_query
from http_api.ports.node import Ports
from http_api.protocol.answers import Pairs
from http_api.protocol.headers import joined
from http_api.protocol.media import check_json_type
from http_api.serving.body import RequestBody
from http_api.serving.places import pause
from http_api.serving.quotas import Bound, Payer, payer_of
from http_api.serving.routing import check_no_dots
from http_api.serving.shared import Shared
from milena.model.errors import MalformedRequestError, QuotaExceededError
from milena.model.plain_text import escaped, has_control
from milena.model.quotas import CLIENT_ID_HEADER, QuotaKey


@dataclass(slots=True)
class Call:
    """One request. A handler reads it, calls one port and returns a response."""

    request: web.BaseRequest
    shared: Shared
    request_id: str
    own_headers: Pairs
    """Headers of every response to this request, also of errors."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The path's parameters, percent-decoded, by name."""
    begun: web.StreamResponse | None = None
    """A streaming response that has started. Metrics count the time until it started."""
    begun_s: float = 0.0
    """When the response started, on the loop's clock (seconds)."""
    is_last: bool = False
    """Whether the connection closes after the response."""
    rights: Rights = field(init=False)
    body: RequestBody = field(init=False)

    def __post_init__(self) -> None:
        self.rights = Rights(self.request, self.request_id, self.shared.ports.callers)
        self.body = RequestBody(self.request, self.shared, on_come=self.rights.check_again)

    # -- what it says ----------------------------------------------------------------------------

    @property
    def ports(self) -> Ports:
        """The node."""
        return self.shared.ports

    @property
    def raw_query(self) -> str:
        """The query string as it was sent."""
        return self.request.rel_url.raw_query_string

    def query(self) -> Mapping[str, str]:
        """Return the parsed query string."""
        raw = self.raw_query
        return parse_query(raw) if raw else {}

    def header(self, name: str) -> str:
        """Return a header's value; join repeated headers to a list. An absent header is an empty text."""
        return joined(self.request.headers, name)

    async def json_body(self) -> object:
        """Return the body's JSON.

        Raises:
            UnsupportedMediaTypeError, RequestTooLargeError, MalformedRequestError: the body cannot be read as JSON.
        """
        check_json_type(self.header("Content-Type"))
        return parse_json(await self.body.whole())

    async def optional_json_body(self) -> object:
        """Return the body's JSON, or an empty object if there is no body.

        Raises:
            UnsupportedMediaTypeError, RequestTooLargeError, MalformedRequestError: the body cannot be read as JSON.
        """
        check_json_type(self.header("Content-Type"))
        body = await self.body.whole()
        return parse_json(body) if body else {}

    async def note(self, action: str, change: Mapping[str, object], *, timeout_ms: int) -> int:
        """Write an action to the audit log before it happens; return the time that is left for it (ms, at least 1).

        Raises:
            NoQuorumError: the log cannot be written within the time, so the action must not happen.
        """
        clock = asyncio.get_running_loop().time
        began_s = clock()
        await self.ports.metadata.note(action, change, timeout_ms=timeout_ms)
        return max(1, timeout_ms - int((clock() - began_s) * 1000))

    def check_groups(self, groups: Iterable[str]) -> None:
        """Check that the caller may create these groups, or commit offsets in them.

        Raises:
            GroupLimitError: the principal has used up its share of groups or offsets (``GroupShares``).
            MalformedRequestError: a new group has a control character in its name, or is named ``.`` or ``..``.
        """
        shares, image = self.shared.group_shares, self.ports.metadata.image
        groups = list(groups)
        for group in groups:
            # Earlier releases allowed names that are refused below. Existing groups must stay usable.
            if group in image.groups:
                continue
            check_no_dots("group", group)
            if has_control(group):
                raise MalformedRequestError(
                    f"control characters are not allowed in names: '{escaped(group)}'"
                )
        shares.check(image, self.rights.known_principal, groups)

    # -- quotas ----------------------------------------------------------------------------------

    @property
    def payer(self) -> Payer:
        """The caller to whose quota the request is charged."""
        given = self.request.headers.get(CLIENT_ID_HEADER)
        return payer_of(self.rights.known_principal, self.request.remote, given)

    async def take_turn(self) -> None:
        """Charge the request to its caller's quota. If the quota is used up, wait for a short time.

        Raises:
            QuotaExceededError: a longer wait would be needed, or the caller has too many connections. Nothing was done.
        """
        quotas, payer = self.shared.quotas, self.payer
        bound = quotas.bound(payer, QuotaKey.CONNECTION_COUNT)
        if bound is not None:
            self._have_connection(payer, bound)
        clock = asyncio.get_running_loop().time
        wait_s = quotas.short_wait_s(payer, clock())
        quotas.charge(payer, clock(), requests=1)
        if wait_s > 0:
            await pause(wait_s)

    def _have_connection(self, payer: Payer, bound: Bound) -> None:
        connections, connection = self.shared.connections, self.request.protocol
        if connections.is_of(connection, bound.owner):
            return
        try:
            self.shared.quotas.check_count(
                payer, QuotaKey.CONNECTION_COUNT, connections.count_of(bound.owner)
            )
        except QuotaExceededError:
            self.is_last = True
            raise
        connections.claim(connection, bound.owner)

    def pay(self, response: web.StreamResponse | None) -> None:
        """Charge the bytes of the request and its response to the caller's quota."""
        body = getattr(response, "body", None)
        self.shared.quotas.charge(
            self.payer,
            asyncio.get_running_loop().time(),
            bytes_in=self.body.reserved_bytes,
            bytes_out=len(body) if isinstance(body, bytes) else 0,
        )

    async def pay_piece(self, piece: bytes) -> None:
        """Charge a piece of a stream to the caller's quota, and wait until the next piece may be sent."""
        quotas = self.shared.quotas
        if not quotas.is_on:
            return
        payer, now_s = self.payer, asyncio.get_running_loop().time()
        quotas.charge(payer, now_s, bytes_out=len(piece))
        wait_s = quotas.wait_s(payer, now_s)
        if wait_s > 0:
            await pause(wait_s)
