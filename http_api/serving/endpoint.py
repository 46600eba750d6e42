"""An endpoint: one row of the table that dispatches requests and describes the API."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, unique
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import web

from http_api.access.needs import Access
from http_api.describing.params import Param, ParamPlace
from http_api.describing.path_params import names_in, params_in
from http_api.protocol.media import JSON_TYPE, V2_TYPE
from http_api.shapes.blocks import Part, Shape
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
    """Responds to the small requests of one head, past aiohttp (``http_api.quick.lane``)."""

    content_type: str
    """The media type of the responses."""

    headers: Mapping[str, str]
    """Headers of successful responses; mostly none."""

    def start(self, body: bytes, key: str | None) -> "Pending[Any]":
        """Pass a body to the node, perhaps with an idempotency key. First check the caller's rights to what it names.

        Raises:
            MilenaError: the body is at fault, or the caller may not do this. Nothing was done.
        """

    def encode(self, result: Any, /) -> bytes:  # noqa: ANN401  (what ``start`` brought)
        """Return the body of the response.

        Raises:
            MilenaError: the response is an error.
        """


Prepare = Callable[
    ["Ports", "Caller", Mapping[str, str], str, Mapping[str, str]], QuickHandler | None
]
"""Makes a handler from the ports, the caller, the names of the path, the query string and the headers.

Names of headers are in lower case. None: heads like this one go the usual way.
"""


@unique
class Tag(StrEnum):
    """Groups of endpoints, in the order in which the document shows them."""

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
    """One successful status and its content. ``headers``: names out of ``openapi.HEADERS``."""

    status: int = 200
    description: str
    content: Content = field(default_factory=dict)
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One endpoint. ``path`` has names in braces: ``/topics/{topic}``. A verb may follow a name: ``{name}:verb``."""

    method: str
    path: str
    handler: Handler
    operation_id: str
    """Names the operation in generated clients. It never changes and is never reused."""
    tag: Tag
    access: Access
    """The rights that the caller needs. There is no default, so no endpoint can omit them."""
    summary: str
    description: str = ""
    params: tuple[Param, ...] = ()
    body: Body | None = None
    answers: tuple[Answer, ...] = ()
    errors: tuple[type[MilenaError], ...] = ()
    """Errors in addition to those that follow from the rest of the row (see ``openapi.errors_of``)."""
    topic_missing_code: int = 40401
    """The ``error_code`` of a topic that does not exist. It differs between endpoints of the dialects."""
    is_current: bool = False
    """The image has everything that any node had acknowledged when the request arrived."""
    is_exempt: bool = False
    """The bound on requests in flight does not apply: probes and metrics."""
    takes_records: bool = False
    """A ``GET`` that changes the response to the next one."""
    prepare: Prepare | None = None
    """Makes a handler for heads that repeat, if the endpoint supports the quick lane."""
    query_names: frozenset[str] = field(init=False)
    """Parameters of the query; any other is refused."""
    header_names: frozenset[str] = field(init=False)
    """Parameters that are headers; any other condition is refused."""

    @property
    def has_effect(self) -> bool:
        """Whether it changes something, and a page of any origin may make a browser send it without a preflight."""
        return self.takes_records or self.method == "POST"

    @property
    def path_names(self) -> tuple[str, ...]:
        """Names in the path, in order."""
        return names_in(self.path)

    def __post_init__(self) -> None:
        needs = self.access.needs
        assert needs is None or not needs.path_name or needs.path_name in self.path_names, self.path
        # Computed once, because each request with a query is checked against them.
        for place, names in (
            (ParamPlace.QUERY, "query_names"),
            (ParamPlace.HEADER, "header_names"),
        ):
            known = frozenset(param.name for param in self.params if param.place is place)
            object.__setattr__(self, names, known)


def route(
    line: str,
    operation_id: str,
    handler: Handler,
    summary: str,
    answers: tuple[Answer, ...],
    *params: Param,
    tag: Tag,
    access: Access,
    description: str = "",
    body: Body | None = None,
    errors: tuple[type[MilenaError], ...] = (),
    topic_missing_code: int = 40401,
    is_current: bool = False,
    is_exempt: bool = False,
    takes_records: bool = False,
    prepare: Prepare | None = None,
) -> Route:
    """Return a row for ``METHOD /path``. The parameters of the path come before ``params``."""
    method, path = line.split()
    return Route(
        method=method,
        path=path,
        handler=handler,
        operation_id=operation_id,
        tag=tag,
        access=access,
        summary=summary,
        description=description,
        params=(*params_in(path), *params),
        body=body,
        answers=answers,
        errors=errors,
        topic_missing_code=topic_missing_code,
        is_current=is_current,
        is_exempt=is_exempt,
        takes_records=takes_records,
        prepare=prepare,
    )


def json_content(part: Part) -> Content:
    """Return content of JSON under its own name only."""
    return {JSON_TYPE: part}


def v2_content(part: Part) -> Content:
    """Return content of JSON under the name that v2's clients ask for, and under its own."""
    return {V2_TYPE: part, JSON_TYPE: part}


def ok(shape: Shape, description: str) -> tuple[Answer, ...]:
    """Return the response 200 with JSON."""
    return (Answer(description=description, content=json_content(shape)),)


def ok_v2(shape: Shape, description: str) -> tuple[Answer, ...]:
    """Return the response 200 with JSON under either name."""
    return (Answer(description=description, content=v2_content(shape)),)
