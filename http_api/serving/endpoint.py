"""A row of the table of endpoints, by which requests are dispatched and the OpenAPI document is generated."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum, unique
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import web

from http_api.access.needs import Access
from http_api.describing.params import Param, ParamPlace
from http_api.describing.path_params import names_in, params_in
from http_api.protocol.media import JSON_TYPE, V2_TYPE
from http_api.shapes.blocks import Part
from milena.model.errors import MilenaError

if TYPE_CHECKING:
    from http_api.access.callers import Caller
    from http_api.ports.node import Ports
    from http_api.serving.call import Call
    from milena.model.pending import Pending

Handler = Callable[["Call"], Awaitable[web.StreamResponse]]
Content = Mapping[str, Part]
"""Bodies by media type."""


class QuickHandler(Protocol):
    """Handles small requests with one known head in the quick lane (``http_api.quick.lane``)."""

    content_type: str
    """The media type of the responses."""

    def start(self, body: bytes, varying: str | None) -> "Pending[Any] | None":
        """Check the caller's rights to the resources in the body, and pass the request to the node.

        ``varying`` is the part of the head that differs between requests, or None: the idempotency key of a ``POST``,
        the query of a ``GET``. The result is None if this request has to go the usual way. Nothing was done then.

        Raises:
            MilenaError: the request is invalid, or the caller does not have the rights. Nothing was done.
        """

    def encode(self, result: Any, /) -> bytes:  # noqa: ANN401  (what ``start`` brought)
        """Return the body of the response.

        Raises:
            MilenaError: the request failed; send this error.
        """

    def headers_of(self, result: Any, /) -> Mapping[str, str]:  # noqa: ANN401  (what ``start`` brought)
        """Return further headers of a successful response; usually none."""


Prepare = Callable[
    ["Ports", "Caller", Mapping[str, str], str, Mapping[str, str]], QuickHandler | None
]
"""A function that creates a quick handler from ports, caller, path parameters, query string and headers.

Names of headers are in lower case. It returns None if the quick lane does not support such requests.
"""


@unique
class Tag(StrEnum):
    """Groups of endpoints, in their order in the OpenAPI document."""

    RECORDS = "records"
    CONSUMERS = "consumers"
    GROUPS = "groups"
    TOPICS = "topics"
    TRANSACTIONS = "transactions"
    CLUSTER = "cluster"
    V3_CLUSTERS = "v3 clusters"
    V3_TOPICS = "v3 topics"
    V3_CONFIGS = "v3 configs"
    V3_PARTITIONS = "v3 partitions"
    V3_GROUPS = "v3 consumer groups"
    ACCESS = "access"
    V3_ACLS = "v3 acls"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The body of a request."""

    content: Content
    is_required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One successful status and its content. ``headers`` are names from ``openapi.HEADERS``."""

    status: int = 200
    description: str
    content: Content = field(default_factory=dict)
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint."""

    line: str
    """``METHOD /path``."""
    operation_id: str
    """The name of the operation in generated clients. It must never change, and must not be reused."""
    handler: Handler
    summary: str
    answers: tuple[Answer, ...] = ()
    _: KW_ONLY
    tag: Tag
    access: Access
    """The rights that the caller needs. There is no default, so each endpoint must declare them."""
    description: str = ""
    own_params: tuple[Param, ...] = ()
    """The parameters besides those of the path."""
    body: Body | None = None
    errors: tuple[type[MilenaError], ...] = ()
    """Errors in addition to those that follow from the rest of the row (see ``openapi.errors_of``)."""
    topic_missing_code: int = 40401
    """The ``error_code`` for a missing topic. It differs between endpoints, as in the APIs that they follow."""
    is_current: bool = False
    """Whether the image must be current: it has all changes that any node acknowledged before the request arrived."""
    is_exempt: bool = False
    """Whether the limit on requests in flight does not apply, as for probes and metrics."""
    takes_records: bool = False
    """Whether this is a ``GET`` with an effect: it takes records, and the next one returns others."""
    prepare: Prepare | None = None
    """Creates handlers for the quick lane; None if the endpoint does not support it."""
    method: str = field(init=False)
    path: str = field(init=False)
    """It has parameters in braces: ``/topics/{topic}``. A verb may follow one: ``{name}:verb``."""
    params: tuple[Param, ...] = field(init=False)
    """All parameters, those of the path first."""
    query_names: frozenset[str] = field(init=False)
    """The query parameters of the endpoint; others are refused."""
    header_names: frozenset[str] = field(init=False)
    """The headers that the endpoint declares; other conditional headers are refused."""

    @property
    def has_effect(self) -> bool:
        """Whether a request changes something, and browsers send it without a preflight for a page of any origin."""
        return self.takes_records or self.method == "POST"

    @property
    def path_names(self) -> tuple[str, ...]:
        """Names in the path, in order."""
        return names_in(self.path)

    def __post_init__(self) -> None:
        method, path = self.line.split()
        params = (*params_in(path), *self.own_params)
        for name, value in (("method", method), ("path", path), ("params", params)):
            object.__setattr__(self, name, value)
        needs = self.access.needs
        assert needs is None or not needs.path_name or needs.path_name in self.path_names, self.path
        # Compute these sets once, because each request with a query is checked against them.
        for place, names in (
            (ParamPlace.QUERY, "query_names"),
            (ParamPlace.HEADER, "header_names"),
        ):
            known = frozenset(param.name for param in self.params if param.place is place)
            object.__setattr__(self, names, known)


def json_content(part: Part) -> Content:
    """Return content with the type ``application/json``."""
    return {JSON_TYPE: part}


def v2_content(part: Part) -> Content:
    """Return content with v2's name for JSON, and with ``application/json``."""
    return {V2_TYPE: part, JSON_TYPE: part}


def ok(part: Part, description: str, *headers: str, status: int = 200) -> tuple[Answer, ...]:
    """Return a successful response with JSON. ``headers`` are names from ``openapi.HEADERS``."""
    content = json_content(part)
    return (Answer(status=status, description=description, content=content, headers=headers),)


def ok_v2(part: Part, description: str, *headers: str) -> tuple[Answer, ...]:
    """Return the response 200 with JSON, under v2's name or as ``application/json``."""
    return (Answer(description=description, content=v2_content(part), headers=headers),)
