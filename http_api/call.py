"""One request on its way through: what handlers get, and the bounds on what it may take up."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.http import HttpVersion11

from http_api.access import ALL_TOPICS, Access
from http_api.answers import Pairs
from http_api.callers import ANYBODY, Caller
from http_api.certificates import ClientCertificate
from http_api.codings import unpack, window_of
from http_api.connections import Connections
from http_api.errors import BodyTimeoutError
from http_api.media import check_json_type
from http_api.ports import ApiLimits, Ports
from http_api.quotas import Quotas
from http_api.request_metrics import RequestMetrics
from http_api.schemas import parse_json, parse_query
from http_api.streams import Streams, pause
from milena.model.access import CLUSTER_NAME, Operation, ResourceType
from milena.model.errors import (
    ForbiddenError,
    MalformedRequestError,
    NotReadyError,
    RequestTooLargeError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from milena.model.turns import LARGE_BYTES, Turns

_log = logging.getLogger("http_api.access")
_audit_log = logging.getLogger("http_api.audit")

_PACKED_AT_ONCE_BYTES = 4 << 10
"""A body that is no larger is unpacked in one go: it can become some 4 MB."""


_CHUNK_BYTES_MIN = 4 << 10
"""What comes in larger pieces is copied once, when all is there."""


@dataclass(slots=True)
class InFlight:
    """Requests under way and the bytes of their bodies, against their bounds."""

    limits: ApiLimits
    request_count: int = 0
    body_bytes: int = 0

    def admit(self) -> None:
        """Count one more request.

        Raises:
            TooManyRequestsError: there are as many as there may be.
        """
        if self.request_count >= self.limits.requests_in_flight_max:
            raise TooManyRequestsError(
                f"{self.request_count} requests are in flight; try again later"
            )
        self.request_count += 1

    def has_room_for(self, byte_count: int) -> bool:
        """Whether one more request with such a body would be taken."""
        limits = self.limits
        return (
            self.request_count < limits.requests_in_flight_max
            and byte_count <= limits.request_bytes_max
            and self.body_bytes + byte_count <= limits.bytes_in_flight_max
        )

    def readmit(self) -> None:
        """Count a request again whose body has come.

        Raises:
            TooManyRequestsError: there are as many as there may be by now; it counts nevertheless.
        """
        self.request_count += 1
        if self.request_count > self.limits.requests_in_flight_max:
            raise TooManyRequestsError(
                f"{self.request_count} requests are in flight; try again later"
            )

    def reserve(self, byte_count: int) -> None:
        """Count bytes of a body that have come.

        Raises:
            TooManyRequestsError: together with the bodies under way it would be too much.
        """
        if self.body_bytes + byte_count > self.limits.bytes_in_flight_max:
            raise TooManyRequestsError(
                f"{self.body_bytes} bytes of requests are in flight; try again later"
            )
        self.body_bytes += byte_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Values that all calls of a server have in common."""

    ports: Ports
    in_flight: InFlight
    request_metrics: RequestMetrics
    turns: Turns
    connections: Connections
    streams: Streams
    quotas: Quotas
    description: bytes
    """The OpenAPI document, which never changes while the server runs."""


def everything(_: str) -> bool:
    """``Call.seen`` of a caller from whom nothing is hidden."""
    return True


@dataclass(slots=True)
class Call:
    """One request. Handlers read it, call one port and return an answer."""

    request: web.BaseRequest
    shared: Shared
    request_id: str
    own_headers: Pairs
    """Of its answer, whatever that is."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Percent-decoded names of the path."""
    reserved_bytes: int = 0
    """What the body takes up in ``InFlight``; the dispatcher gives it back."""
    begun: web.StreamResponse | None = None
    """An answer that has begun and has no end yet; what is measured of it is the time until it began."""
    begun_s: float = 0.0
    """When, on the loop's clock."""
    has_asked: bool = False
    """Whether it was asked what the caller may, beside what the path needs."""
    _access: Access | None = None
    _caller: Caller = ANYBODY

    # -- who calls, and may they? ----------------------------------------------------------------

    async def identify(self, access: Access) -> None:
        """Find out who calls, and whether they may what the path says.

        Raises:
            UnauthenticatedError, ForbiddenError, TooManyRequestsError, NotReadyError: they may not.
        """
        self._access = access
        callers = self.shared.ports.callers
        if not callers.holds(self._caller):
            given = self._credentials()
            self._caller = callers.known(*given) or await callers.identify(*given)
        self._authorize_path()

    def check_again(self) -> None:
        """What was asked of the path, asked again if the answer may be another one by now.

        Raises:
            UnauthenticatedError, ForbiddenError, NotReadyError: they may not any more.
        """
        if self._access is not None and not self.shared.ports.callers.holds(self._caller):
            self._authorize_path()

    @property
    def caller(self) -> Caller:
        """Who calls, as of now.

        Raises:
            UnauthenticatedError, NotReadyError: nobody whose credentials are good any more.
        """
        callers = self.shared.ports.callers
        if not callers.holds(self._caller):
            caller = callers.known(*self._credentials())
            if caller is None:
                raise UnauthenticatedError(
                    "what the cluster knows of these credentials changed while it was asked; send the request again"
                )
            self._caller = caller
        return self._caller

    @property
    def known_principal(self) -> str:
        """Who was found to call; empty where nobody was asked, or nobody is known."""
        return self._caller.known_principal

    def tell(self, what: str) -> None:
        """A line of the log about a change of access, and who made it."""
        _audit_log.info(
            "changed principal=%s what=%s remote=%s request_id=%s",
            self._caller.principal,
            what,
            self.request.remote,
            self.request_id,
        )

    def _credentials(self) -> tuple[str | None, str, ClientCertificate | None]:
        given = self.request.headers.getall("Authorization", None)
        header = None if given is None else ", ".join(given)
        # Of a connection that is aiohttp's alone nothing is known.
        certificate = getattr(self.request.protocol, "certificate", None)
        return header, self.request.remote or "", certificate

    def _authorize_path(self) -> None:
        assert self._access is not None
        needs = self._access.needs
        if needs is not None:
            name = self.names[needs.path_name] if needs.path_name else CLUSTER_NAME
            if self._access.is_filtered and name == ALL_TOPICS:
                return
            self._require(
                self.caller.may(needs.operation, needs.resource_type, name),
                needs.operation,
                needs.resource_type,
                name,
            )

    def authorize(self, operation: Operation, kind: ResourceType, names: Iterable[str]) -> None:
        """Refuse unless the caller may do this to all of these.

        Raises:
            ForbiddenError: it may not; the message names the first that it may not.
        """
        self.has_asked = True
        for name in names:
            self._require(self.caller.may(operation, kind, name), operation, kind, name)

    def authorize_creation(self, topic: str) -> None:
        """Refuse unless the caller may make a topic of this name.

        Raises:
            ForbiddenError: it may not.
        """
        self.has_asked = True
        may = self.caller.may_create(topic)
        self._require(may, Operation.CREATE, ResourceType.TOPIC, topic)

    def authorize_all(self, operation: Operation, kind: ResourceType) -> None:
        """Refuse unless the caller may do this to whatever there is of this type, and will be.

        Raises:
            ForbiddenError: it may not.
        """
        self.has_asked = True
        self._require(self.caller.may_with_all(operation, kind), operation, kind, "*")

    def authorize_producer(self, name: str | None) -> None:
        """Refuse unless the caller may write as the producer of this name; None: as one without a name.

        Source: Kafka's rules for InitProducerId.

        Raises:
            ForbiddenError: it may not.
        """
        if name is not None:
            self.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, [name])
            return
        self.has_asked = True
        may = self.caller.may_with_some(Operation.WRITE, ResourceType.TOPIC) or self.caller.may(
            Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME
        )
        self._require(may, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)

    def authorize_unheard_producer(self, producer_id: int) -> None:
        """Refuse for now unless the caller may write as any producer: this node does not know which one it is.

        Raises:
            NotReadyError: it may not.
        """
        self.has_asked = True
        caller = self.caller
        kind = ResourceType.TRANSACTIONAL_ID
        if caller.is_enforced and not caller.may_with_all(Operation.WRITE, kind):
            raise NotReadyError(
                f"this node has not heard of producer {producer_id} yet, and so cannot tell whether {caller.principal} "
                "may write as it; try again"
            )

    def seen(
        self, kind: ResourceType, operation: Operation = Operation.DESCRIBE
    ) -> Callable[[str], bool]:
        """Whether the caller is shown the resource of a name, in an answer about several."""
        self.has_asked = True
        caller = self.caller
        if not caller.is_enforced or caller.may_with_all(operation, kind):
            return everything
        return lambda name: caller.may(operation, kind, name)

    def may_create(self, topic: str) -> bool:
        """Whether a topic that is missing is made for this caller, where nodes do that."""
        caller = self.caller
        return not caller.is_enforced or caller.may_create(topic)

    def _require(self, may: bool, operation: Operation, kind: ResourceType, name: str) -> None:
        if may:
            return
        caller = self._caller
        what = f"{caller.principal} may not {operation} {kind} {name}"
        if not caller.is_enforced and not (self._access and self._access.is_strict):
            _log.warning("would be refused: %s request_id=%s", what, self.request_id)
            return
        raise ForbiddenError(f"{what}: no access control entry allows it, or one denies it")

    # -- quotas ----------------------------------------------------------------------------------

    @property
    def _payer(self) -> str:
        return self.known_principal or self.request.remote or ""

    async def take_turn(self) -> None:
        """Count the request against its caller's quota, and wait a little where that is spent.

        Raises:
            QuotaExceededError: it is spent for longer; nothing was done.
        """
        quotas = self.shared.quotas
        clock = asyncio.get_running_loop().time
        wait_s = quotas.short_wait_s(self._payer, clock())
        quotas.charge(self._payer, clock(), requests=1)
        if wait_s > 0:
            await pause(wait_s)

    def pay(self, response: web.StreamResponse | None) -> None:
        """Count what the request brought, and what it was answered with."""
        body = getattr(response, "body", None)
        self.shared.quotas.charge(
            self._payer,
            asyncio.get_running_loop().time(),
            bytes_in=self.reserved_bytes,
            bytes_out=len(body) if isinstance(body, bytes) else 0,
        )

    async def pay_piece(self, piece: bytes) -> None:
        """Count a piece of a stream, and wait until another one may be sent."""
        quotas = self.shared.quotas
        if not quotas.is_on:
            return
        now_s = asyncio.get_running_loop().time()
        quotas.charge(self._payer, now_s, bytes_out=len(piece))
        wait_s = quotas.wait_s(self._payer, now_s)
        if wait_s > 0:
            await pause(wait_s)

    # -- what it says ----------------------------------------------------------------------------

    @property
    def ports(self) -> Ports:
        """The node."""
        return self.shared.ports

    @property
    def raw_query(self) -> str:
        """The query string as it came."""
        return self.request.rel_url.raw_query_string

    def query(self) -> Mapping[str, str]:
        """The parsed query string."""
        raw = self.raw_query
        return parse_query(raw) if raw else {}

    def header(self, name: str) -> str:
        """A header; several of one name as one list; empty when absent."""
        values = self.request.headers.getall(name, None)
        if values is None:
            return ""
        return values[0] if len(values) == 1 else ", ".join(values)

    async def json_body(self) -> object:
        """The body's JSON.

        Raises:
            UnsupportedMediaTypeError, RequestTooLargeError, MalformedRequestError: it cannot be read as such.
        """
        check_json_type(self.header("Content-Type"))
        return parse_json(await self.body())

    async def optional_json_body(self) -> object:
        """The body's JSON; an empty object when there is no body.

        Raises:
            UnsupportedMediaTypeError, RequestTooLargeError, MalformedRequestError: it cannot be read as such.
        """
        check_json_type(self.header("Content-Type"))
        body = await self.body()
        return parse_json(body) if body else {}

    async def body(self) -> bytes:
        """The whole body, unpacked, within its bound.

        Raises:
            UnsupportedMediaTypeError: a content coding that is not taken.
            RequestTooLargeError: above the bound, as announced or as it came (compressed bodies grow).
            TooManyRequestsError: other bodies leave no room for it now.
            BodyTimeoutError: it did not come in time.
        """
        coding = self.request.headers.get("Content-Encoding")
        window = None if coding is None else window_of(coding)
        body = await self._received()
        if window is None:
            return body
        size = LARGE_BYTES if len(body) > _PACKED_AT_ONCE_BYTES else 0
        return await self.shared.turns.run(unpack(body, window, self.account), size)

    async def pieces(self, is_due: Callable[[], bool]) -> AsyncIterator[bytes]:
        """The body as it comes; the caller bounds what it keeps, and tells when the rest must not take long.

        It ends early, as if nothing more were to come, when the node is about to stop. A compressed one comes whole.

        Raises:
            UnsupportedMediaTypeError, RequestTooLargeError, MalformedRequestError: it cannot be read.
            BodyTimeoutError: what was due did not come.
        """
        if self.request.headers.get("Content-Encoding"):
            yield await self.body()
            return
        if "Expect" in self.request.headers:
            await self._send_continue()
        began = self.shared.streams.ended_count
        while self.shared.streams.ended_count == began:
            data = await self._piece(is_due=is_due())
            if not data:
                return
            yield data

    async def _piece(self, *, is_due: bool) -> bytes:
        connections, streams = self.shared.connections, self.shared.streams
        began = streams.ended_count
        wait_s = self.shared.in_flight.limits.body_wait_ms_max / 1000
        connections.rest(self.request.protocol)
        try:
            async with asyncio.timeout(wait_s if is_due else None) as end:
                with streams.ending_with(end):
                    return await self.request.content.readany()
        except TimeoutError:
            if streams.ended_count == began:
                raise BodyTimeoutError(
                    f"the rest of a record did not come within {wait_s:g} s"
                ) from None
            return b""
        except (web.RequestPayloadError, web.PayloadAccessError) as error:
            raise MalformedRequestError(f"the body cannot be read: {error}") from None
        finally:
            connections.work(self.request.protocol)

    @contextmanager
    def outside_of_flight(self) -> Iterator[None]:
        """For so long this is no request in flight: it has a place among the streams."""
        in_flight = self.shared.in_flight
        in_flight.request_count -= 1
        try:
            yield
        finally:
            in_flight.request_count += 1

    async def _received(self) -> bytes:
        """The body as it was sent."""
        request = self.request
        # What is announced is not there yet: else a few clients who announce much and send little keep others out.
        announced = request.content_length
        if announced:
            self._check_size(announced)
        content = request.content
        if content.is_eof():
            body = content.read_nowait(-1)
            self.account(len(body))
            return body
        if "Expect" in request.headers:
            await self._send_continue()
        wait_s = self.shared.in_flight.limits.body_wait_ms_max / 1000
        try:
            async with asyncio.timeout(wait_s):
                return await self._read_slowly()
        except TimeoutError:
            raise BodyTimeoutError(f"the body did not come within {wait_s:g} s") from None
        except (web.RequestPayloadError, web.PayloadAccessError) as error:
            raise MalformedRequestError(f"the body cannot be read: {error}") from None

    async def _read_slowly(self) -> bytes:
        """Read while the client sends; for so long the request counts for nothing, and its connection may be closed.

        Else clients that never come to an end would keep others out.
        """
        shared = self.shared
        shared.in_flight.request_count -= 1
        shared.connections.rest(self.request.protocol)
        try:
            body = await self._read_chunks()
        except BaseException:
            shared.in_flight.request_count += 1
            raise
        finally:
            shared.connections.work(self.request.protocol)
        shared.in_flight.readmit()
        return body

    async def _read_chunks(self) -> bytes:
        content = self.request.content
        chunks: list[bytes] = []
        # Small chunks become one piece: thousands that are freed would leave a heap full of holes.
        small = bytearray()
        size = 0
        while chunk := await content.readany():
            size += len(chunk)
            self.account(size)
            if len(chunk) < _CHUNK_BYTES_MIN:
                small += chunk
                continue
            if small:
                chunks.append(bytes(small))
                small.clear()
            chunks.append(chunk)
        if small:
            chunks.append(bytes(small))
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _check_size(self, size: int) -> None:
        most = self.shared.in_flight.limits.request_bytes_max
        if size > most:
            raise RequestTooLargeError(
                f"the body has {size} bytes or more; at most {most} are taken in one request"
            )

    def account(self, size: int) -> None:
        """Count bytes of the body that have come (compressed bodies grow)."""
        self._check_size(size)
        if size > self.reserved_bytes:
            self.shared.in_flight.reserve(size - self.reserved_bytes)
            self.reserved_bytes = size

    async def _send_continue(self) -> None:
        """Ask for the body, now that it is known to be wanted: curl waits a second for this."""
        request = self.request
        if request.version == HttpVersion11 and self.header("Expect").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            # The interim answer is not part of the final one's size.
            request.writer.output_size = 0
