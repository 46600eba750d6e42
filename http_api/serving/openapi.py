"""Generate the API's OpenAPI 3.1 document from the table of routes and the table of errors. Pure.

A route declares only what is special about it. This module adds what follows from the route's kind: for example, a
request with a body may be too large. Equal parts become components, so that the document stays small.
"""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version

import orjson

from http_api.describing.params import Param, ParamPlace
from http_api.protocol.errors import (
    ERROR_TABLE,
    UNLISTED_ERROR,
    BodyTimeoutError,
)
from http_api.protocol.media import JSON_TYPE, V2_TYPE
from http_api.serving.endpoint import Answer, Body, Route, Tag
from http_api.shapes.blocks import Schema, SchemaPart, Shape
from http_api.shapes.v2 import CONDITION_FAILED, ERROR
from milena.model import errors as e

OPENAPI_VERSION = "3.1.0"

try:
    MILENA_VERSION = version("milena")
except PackageNotFoundError:  # run from a source tree that was never installed
    MILENA_VERSION = "unknown"

Object = dict[str, object]

_DESCRIPTION = """\
A partitioned, replicated, append-only log. Every node answers every request, and knows what any other has answered
before; where that takes a majority and there is none, it says 503.

Bodies are JSON in UTF-8. Unknown fields and parameters are refused, and so are conditions: `If-Match` (but where an
operation has it as a parameter), `If-Unmodified-Since` and `If-Range`, and those of caches (`If-None-Match`,
`If-Modified-Since`) on other methods than `GET` and `HEAD`, where they are ignored. Numbers and booleans are also taken
as text. A path with a slash at its end is the same path. Beside each `GET` there is a `HEAD`, and `OPTIONS` tells the
methods of a path. Errors are always `{"error_code", "message"}`, with the kind of error in the header `Milena-Error`,
and fields beside where an operation says so. 503 and 429 mean that nothing was
written; 504 means that it is not known whether it was."""

_TAGS = {
    Tag.RECORDS: "Produce and fetch",
    Tag.CONSUMERS: "REST consumers, which any node serves, in the v2 dialect",
    Tag.GROUPS: "Consumer groups: members, assignments, committed offsets",
    Tag.TOPICS: "Topics and partitions, in the v2 dialect",
    Tag.TRANSACTIONS: "Records and committed offsets that take effect together, or not at all",
    Tag.CLUSTER: "Brokers, leaders and producer ids",
    Tag.V3_CLUSTERS: "The cluster and its brokers, in the v3 dialect",
    Tag.V3_TOPICS: "Topics, in the v3 dialect",
    Tag.V3_CONFIGS: "Configs of topics, in the v3 dialect",
    Tag.V3_PARTITIONS: "Partitions and replicas, in the v3 dialect",
    Tag.V3_GROUPS: "Consumer groups, their members and their lag, in the v3 dialect",
    Tag.ACCESS: "The access mode, users and their tokens, quotas",
    Tag.V3_ACLS: "Access control entries, in the v3 dialect",
    Tag.NODE: "The node that is asked: probes, metrics, this document",
}

HEADERS: Mapping[str, tuple[str, str]] = {
    "X-Request-Id": (
        "string",
        "the request's own, or one of the node's; the node's log has it too",
    ),
    "Milena-Error": ("string", "the kind of error: a stable word; a bug has none"),
    "Retry-After": ("integer", "seconds to wait before the next try"),
    "WWW-Authenticate": ("string", "how to come with credentials"),
    "Location": ("string", "URL of what was created"),
    "Milena-Start-Offset": ("integer", "the offset that the question came to"),
    "Milena-Next-Offset": ("integer", "the offset to go on with"),
    "Milena-High-Watermark": (
        "integer",
        "the first offset that is not committed: all that was acknowledged lies below it",
    ),
    "Milena-Last-Stable-Offset": (
        "integer",
        "where committed records end: at the first transaction that is open, else at the high watermark",
    ),
    "Milena-Log-Start-Offset": ("integer", "the first record there is"),
    "Milena-Record-Format": (
        "string",
        "as what records were taken whose `Content-Type` says nothing of it: `json`",
    ),
    "Milena-Leader-Epoch": ("integer", "grows with each change of the partition's leader"),
    "ETag": (
        "string",
        'topic and next offset, as far as the answer tells of it, `"9f3a12bc44de.42"`: a write can name it',
    ),
}
"""Descriptions of response headers by name."""

_RETRY_STATUSES = (429, 503)

_ENVELOPES = {412: CONDITION_FAILED}
"""The shapes of errors with more fields than code and message, by status."""

_FAULTS = [row for row in ERROR_TABLE.values() if row.status == 500] + [UNLISTED_ERROR]


def encode_document(routes: Iterable[Route]) -> bytes:
    """Return the document as it is served."""
    return orjson.dumps(make_document(routes))


def make_document(routes: Iterable[Route]) -> Object:
    """Return the OpenAPI document of these routes."""
    table = tuple(routes)
    components = _Components(table)
    paths: dict[str, Object] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = components.operation(route)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "Milena",
            "version": MILENA_VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "the node that gave this document, or any other"}],
        "tags": [{"name": tag, "description": _TAGS[tag]} for tag in Tag],
        # The empty object means that no credentials are needed, which is true for clusters without access control.
        "security": [{}, {"token": []}, {"password": []}],
        "paths": paths,
        "components": components.finished(),
    }


def errors_of(route: Route) -> tuple[type[e.MilenaError], ...]:
    """Return all errors that a route may respond with, including those that follow from its kind."""
    implied: list[type[e.MilenaError]] = [e.MalformedRequestError]
    if not route.access.is_public:
        # ``NotReadyError``: a node without current access data cannot authenticate callers.
        implied += [e.UnauthenticatedError, e.NotReadyError, e.TooManyRequestsError]
    if route.access.needs is not None or route.access.has_more:
        implied.append(e.ForbiddenError)
    if route.body is not None:
        implied += [e.RequestTooLargeError, BodyTimeoutError, e.UnsupportedMediaTypeError]
    if any(V2_TYPE in answer.content for answer in route.answers):
        implied.append(e.NotAcceptableError)
    if not route.is_exempt:
        implied += [e.TooManyRequestsError, e.QuotaExceededError]
    if route.is_current:
        implied.append(e.NoQuorumError)
    return tuple(dict.fromkeys((*implied, *route.errors)))


class _Components:
    """Builds operations, and collects the parts that several of them share."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._schemas: dict[str, object] = {}
        self._shapes: dict[str, Shape] = {}
        self._responses: dict[str, Object] = {}
        self._parameters: dict[str, Param] = {}
        uses: dict[int, list[Param]] = {}
        for route in routes:
            for param in route.params:
                uses.setdefault(id(param), []).append(param)
        self._shared = {key for key, found in uses.items() if len(found) > 1}

    def finished(self) -> Object:
        """Return the components."""
        return {
            "schemas": dict(sorted(self._schemas.items())),
            "responses": dict(sorted(self._responses.items())),
            "parameters": {
                name: self._written(param) for name, param in sorted(self._parameters.items())
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
            "headers": {
                name: {"description": meaning, "schema": {"type": kind}}
                for name, (kind, meaning) in HEADERS.items()
            },
        }

    def operation(self, route: Route) -> Object:
        """Return one operation."""
        operation: Object = {
            "operationId": route.operation_id,
            "tags": [route.tag],
            "summary": route.summary,
        }
        if route.description:
            operation["description"] = route.description
        if route.params:
            operation["parameters"] = [self._param(param) for param in route.params]
        if route.body is not None:
            operation["requestBody"] = self._body(route.body)
        answers = {str(answer.status): self._answer(answer) for answer in route.answers}
        operation["responses"] = {**answers, **self._errors(route)}
        if route.access.is_public:
            operation["security"] = []
        return operation

    # -- requests --------------------------------------------------------------------------------

    def _param(self, param: Param) -> Object:
        if id(param) not in self._shared:
            return self._written(param)
        name, turn = param.name, 1
        while self._parameters.setdefault(name, param) is not param:
            turn += 1
            name = f"{param.name}-{turn}"
        return {"$ref": f"#/components/parameters/{name}"}

    def _written(self, param: Param) -> Object:
        written: Object = {
            "name": param.name,
            "in": param.place,
            "description": param.description,
            "schema": self._schema(param.schema),
        }
        if param.place is ParamPlace.PATH:
            written["required"] = True
        if param.example is not None:
            written["example"] = param.example
        return written

    def _body(self, body: Body) -> Object:
        return {"required": body.is_required, "content": self._content(body.content)}

    # -- answers ---------------------------------------------------------------------------------

    def _answer(self, answer: Answer) -> Object:
        written: Object = {
            "description": answer.description,
            "headers": _headers("X-Request-Id", *answer.headers),
        }
        if answer.content:
            written["content"] = self._content(answer.content)
        return written

    def _content(self, content: Mapping[str, SchemaPart]) -> Object:
        return {type_: {"schema": self._schema(part)} for type_, part in content.items()}

    def _errors(self, route: Route) -> dict[str, Object]:
        """Return the errors of a route by status."""
        kinds: dict[int, dict[type[e.MilenaError], int]] = {}
        for kind in errors_of(route):
            row = ERROR_TABLE[kind]
            code = route.topic_missing_code if kind is e.TopicNotFoundError else row.error_code
            kinds.setdefault(row.status, {})[kind] = code
        written = {
            str(status): self._error(status, by_kind) for status, by_kind in sorted(kinds.items())
        }
        return {**written, "500": self._fault()}

    def _error(self, status: int, by_kind: Mapping[type[e.MilenaError], int]) -> Object:
        lines = [
            f"- `{kind.code}` ({code}): {_meaning(kind)}"
            for kind, code in sorted(by_kind.items(), key=lambda item: (item[1], item[0].code))
        ]
        headers = ["X-Request-Id", "Milena-Error"]
        if status in _RETRY_STATUSES:
            headers.append("Retry-After")
        if status == HTTPStatus.UNAUTHORIZED:
            headers.append("WWW-Authenticate")
        return self._envelope(status, "\n".join(lines), sorted(set(by_kind.values())), headers)

    def _fault(self) -> Object:
        codes = sorted({row.error_code for row in _FAULTS})
        return self._envelope(
            500,
            "A fault of the node; its log has more under the request id.",
            codes,
            ["X-Request-Id", "Milena-Error"],
        )

    def _envelope(
        self, status: int, description: str, codes: list[int], headers: list[str]
    ) -> Object:
        response: Object = {
            "description": description,
            "headers": _headers(*headers),
            "content": {
                JSON_TYPE: {
                    "schema": {
                        "allOf": [self._schema(_ENVELOPES.get(status, ERROR))],
                        "properties": {"error_code": {"enum": codes}},
                    }
                }
            },
        }
        base = name = f"{HTTPStatus(status).phrase.replace(' ', '')}.{'.'.join(map(str, codes))}"
        turn = 1
        while self._responses.setdefault(name, response) != response:
            turn += 1
            name = f"{base}-{turn}"
        return {"$ref": f"#/components/responses/{name}"}

    # -- schemas ---------------------------------------------------------------------------------

    def _schema(self, part: SchemaPart) -> object:
        """Return the part with references instead of named shapes, which become components."""
        if isinstance(part, Shape):
            self._define(part)
            return {"$ref": f"#/components/schemas/{part.name}"}
        if isinstance(part, Mapping):
            return {name: self._schema(inner) for name, inner in part.items()}
        if isinstance(part, list | tuple):
            return [self._schema(inner) for inner in part]
        return part

    def _define(self, shape: Shape) -> None:
        known = self._shapes.setdefault(shape.name, shape)
        assert known is shape, f"two shapes are named {shape.name}"
        if shape.name not in self._schemas:
            self._schemas[shape.name] = {}  # a shape may hold itself
            schema: Schema = shape.schema
            if shape.example is not None:
                schema = {**schema, "examples": [shape.example]}
            self._schemas[shape.name] = self._schema(schema)


def _headers(*names: str) -> Object:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _meaning(kind: type[e.MilenaError]) -> str:
    """Return the first paragraph of an error class's docstring."""
    paragraph = (kind.__doc__ or "").split("\n\n")[0]
    return " ".join(paragraph.replace("``", "`").split())
