"""Valid requests with one changed value: parameters, headers and fields of an operation at and beyond their limits."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from urllib.parse import parse_qsl, quote

from http_api.describing.params import ParamPlace
from http_api.routes import ROUTES
from http_api.serving.endpoint import Route
from http_api.shapes.blocks import Part, Shape
from tests.support.http.contract import Ask
from tests.support.http.direct import request_bytes

INT64_MAX = (1 << 63) - 1

NUMBERS = ("0", "-1", "-2", "1", f"{1 << 31}", f"{INT64_MAX}", f"{-INT64_MAX - 1}")
BEYOND = (f"{1 << 63}", f"{(1 << 64) - 1}", f"{1 << 64}", f"{-(1 << 63) - 1}", "9" * 400)
ODD = (
    "",
    "1.5",
    "1e3",
    "0x1",
    "%D9%A1",
    "%C2%B2",
    "NaN",
    "true",
    "%00",
    "%ED%A0%80",
    "%FF",
    "a" * 300,
)
TIMES = (
    "1969-12-31",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00%2B14:00",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-12:00",
    "10000-01-01",
    "-0001-01-01",
    "2026-02-30",
    "2026-W01-1",
)
IN_PATH = (*NUMBERS, *BEYOND, "1.5", "%00", "%FF", "%ED%A0%80", "a" * 300, ".", "%2E%2E", "-", "*")
IN_QUERY = (*NUMBERS, *BEYOND, *ODD, *TIMES)
IN_HEADER = (
    *NUMBERS,
    *BEYOND,
    "",
    "*",
    '"',
    '""',
    "a" * 300,
    "\udcff\udc80",
    "é",
    "1:2:3",
    "-1:-1:-1",
    f"{1 << 64}:0:0",
    ",",
    ";q=",
)
HEADERS = (
    "Accept",
    "Authorization",
    "Content-Encoding",
    "Content-Length",
    "Content-Type",
    "Idempotency-Key",
    "If-Match",
    "If-None-Match",
    "Last-Event-ID",
    "Milena-Transaction",
    "Origin",
    "Transfer-Encoding",
    "X-Forwarded-Host",
    "X-Request-Id",
)

_DEEP = "a deep value"
IN_BODY: tuple[object, ...] = (
    None, True, 0, -1, 1 << 31, INT64_MAX, -INT64_MAX - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63) - 1, 10**400,
    1.5, 1e308, "", "-1", f"{1 << 63}",
    "\ud800", "\x00", "a" * 5_000, "1969-12-31T00:00:00Z", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00", [], {}, [None], {"a": None}, [[]], _DEEP,
)  # fmt: skip
WHOLE = (
    b"",
    b"null",
    b"0",
    b"[]",
    b"{}",
    b'"\\ud800"',
    b"\xff\xfe",
    b"\x00" * 70,
    b"[" * 100_000,
    b'{"records":' * 20_000,
    b"[" * 5_000 + b"]" * 5_000,
    b"1" * 5_000,
    b'{"a":1}\n{"a":',
)


@cache
def _routes() -> Mapping[str, Route]:
    return {route.operation_id: route for route in ROUTES}


def requests_of(ask: Ask, target: str, *, has_headers: bool = True) -> Iterator[bytes]:
    """Yield the request with one value changed at a time; ``target`` is its path and query without placeholders."""
    route = _routes()[ask.operation]
    path, _, query = target.partition("?")
    headers = ask.sent_headers()
    for changed in _paths(route, path):
        yield _request(ask, f"{changed}?{query}" if query else changed, headers, ask.data)
    for changed in _queries(route, query):
        yield _request(ask, f"{path}?{changed}", headers, ask.data)
    declared = {param.name for param in route.params if param.place is ParamPlace.HEADER}
    for name in sorted({*HEADERS, *declared}) if has_headers else ():
        for value in IN_HEADER:
            yield _request(ask, target, {**headers, name: value}, ask.data)
    if route.body is not None:
        for body in _bodies(route, ask):
            yield _request(ask, target, headers, body)


def _request(ask: Ask, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    return request_bytes(ask.method, target, dict(headers), body)


def _paths(route: Route, path: str) -> Iterator[str]:
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+?)", re.escape(route.path))
    found = re.fullmatch(pattern, path)
    assert found is not None, (route.path, path)
    for name in found.groupdict():
        start, end = found.span(name)
        for value in IN_PATH:
            yield path[:start] + value + path[end:]


def _queries(route: Route, query: str) -> Iterator[str]:
    given = dict(parse_qsl(query, keep_blank_values=True))
    for param in route.params:
        if param.place is not ParamPlace.QUERY:
            continue
        others = [f"{name}={quote(value)}" for name, value in given.items() if name != param.name]
        for value in IN_QUERY:
            yield "&".join((*others, f"{param.name}={value}"))


def _bodies(route: Route, ask: Ask) -> Iterator[bytes]:
    yield from WHOLE
    body = ask.data
    if body and not body.startswith(b"{"):
        # For an encoded batch, set each byte of the header to extreme values.
        for at in range(min(len(body), 80)):
            for value in (0x00, 0x7F, 0x80, 0xFF):
                yield body[:at] + bytes((value,)) + body[at + 1 :]
        return
    if not body:
        return
    assert route.body is not None
    content = route.body.content
    part = content.get(ask.type or "", next(iter(content.values())))
    value = json.loads(body)
    for place in _places(part, value):
        for put in IN_BODY:
            yield _dump(_changed(value, place, put))


def _places(part: Part | None, value: object) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of all fields of a value, and of further fields that its schema allows."""
    schema = _schema(part)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        assert isinstance(properties, Mapping)
        for name in sorted({*properties, *value}):
            yield (name,)
            if name in value:
                for rest in _places(properties.get(name), value[name]):
                    yield (name, *rest)
    elif isinstance(value, list) and value:
        yield (0,)
        items = schema.get("items")
        assert items is None or isinstance(items, Mapping | Shape)
        for rest in _places(items, value[0]):
            yield (0, *rest)


def _schema(part: Part | None) -> Mapping[str, object]:
    if part is None:
        return {}
    schema = part.schema if isinstance(part, Shape) else part
    choices = schema.get("anyOf")
    if isinstance(choices, Sequence) and choices:
        assert isinstance(choices[0], Mapping | Shape)
        return _schema(choices[0])
    return schema


def _changed(value: object, place: tuple[str | int, ...], put: object) -> object:
    if not place:
        return put
    first, *rest = place
    if isinstance(value, dict):
        return {**value, first: _changed(value.get(first), tuple(rest), put)}
    assert isinstance(value, list)
    return [_changed(value[0], tuple(rest), put), *value[1:]]


def _dump(value: object) -> bytes:
    deep = "[" * 2_000 + "]" * 2_000
    return json.dumps(value).replace(json.dumps(_DEEP), deep).encode()
