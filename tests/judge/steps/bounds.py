"""Send values at and beyond their limits to every operation in the node's OpenAPI document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.judge.client import Request, Response
from tests.judge.steps import topics

if TYPE_CHECKING:
    import random

    from tests.judge.world import World

_ODD = (
    *(
        "-1",
        "0",
        "1",
        "-0",
        "1.5",
        "1e3",
        "-9223372036854775809",
        "-9223372036854775808",
        "9223372036854775807",
    ),
    *(
        "9223372036854775808",
        "18446744073709551616",
        "9" * 400,
        "",
        " ",
        "null",
        "true",
        "NaN",
        "Infinity",
    ),
    *(
        "-62135596800001",
        "253402300800000",
        "1969-12-31T23:59:59Z",
        "0000-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999Z",
    ),
    *("../..", "\u0000", "\x1b[31m", "ü", "🦜", "a" * 300, "a,b", "%", "-"),
)
_SAFE = (
    "/drain",
    "/access",
    "/users",
    "/reassignments",
    "/quotas",
    "/brokers/",
    "acls",
    "/livez",
    "/metrics",
)


def bounds(world: World, rng: random.Random) -> None:
    """Call one operation with one extreme value: the response must be a documented one, and the node must survive."""
    document = _document(world, rng)
    topic = topics.create(
        world, rng, f"{world.prefix}-bounds-{next(world.numbers)}", is_shared=False
    )
    if document is None or topic is None:
        return
    for _ in range(6):
        path = rng.choice(sorted(document["paths"]))
        if any(part in path for part in _SAFE):
            continue
        item = document["paths"][path]
        method = rng.choice(
            [word for word in item if word in ("get", "post", "head", "put", "patch")] or ["get"]
        )
        operation = item.get(method)
        if operation is None:
            continue
        world.ask(rng, _request(world, rng, document, path, method, operation, topic.name))


def _document(world: World, rng: random.Random) -> dict[str, Any] | None:
    if "openapi" not in world.notes:
        answer = world.ask(rng, Request("GET", "/openapi.json"))
        if not isinstance(answer, Response) or answer.status != 200:
            return None
        world.notes["openapi"] = json.loads(answer.body)
    document: dict[str, Any] = world.notes["openapi"]
    return document


def _request(
    world: World,
    rng: random.Random,
    document: dict[str, Any],
    path: str,
    method: str,
    operation: dict[str, Any],
    topic: str,
) -> Request:
    name = f"{world.prefix}-b"
    values = {
        "topic": topic,
        "partition": "0",
        "cluster": world.cluster_id,
        "group": name,
        "instance": "c1",
    }
    parameters = [_resolve(document, item) for item in operation.get("parameters", [])]
    odd = rng.choice([item["name"] for item in parameters] or [""])
    query, headers = [], [("Accept", "*/*")]
    for item in parameters:
        known = values.get(item["name"], "1")
        value = rng.choice(_ODD) if item["name"] == odd else known
        if item["in"] == "path":
            is_topic = item["name"] == "topic" and method != "get"
            path = path.replace(
                "{" + item["name"] + "}", quote(known if is_topic else value, safe="")
            )
        elif item["in"] == "query" and (item["name"] == odd or rng.random() < 0.2):
            value = (
                "false"
                if item["name"] == "follow"
                else "50"
                if item["name"] == "timeout"
                else value
            )
            query.append(f"{item['name']}={quote(value, safe='')}")
        elif item["in"] == "header" and item["name"] == odd:
            clean = (
                value.encode("ascii", "ignore")
                .decode()
                .replace("\x00", "")
                .replace("\x1b", "")
                .strip()
            )
            headers.append((item["name"], clean))
    if any(item["name"] == "follow" for item in parameters) and not any(
        part.startswith("follow") for part in query
    ):
        query.append("follow=false")
    target = path + ("?" + "&".join(query) if query else "")
    body = None
    if "requestBody" in operation:
        body = _body(rng, document, operation, topic, name)
        headers.append(("Content-Type", "application/json"))
    return Request(method.upper(), target, tuple(headers), body)


def _resolve(document: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in item:
        found: Any = document
        for part in item["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        item = found
    return item


def _body(
    rng: random.Random, document: dict[str, Any], operation: dict[str, Any], topic: str, name: str
) -> bytes:
    content = operation["requestBody"]["content"]
    schema = content.get("application/json", next(iter(content.values())))["schema"]
    text = _value(rng, document, schema, topic, name, 0)
    return text.encode("utf-8", "replace")


def _value(
    rng: random.Random,
    document: dict[str, Any],
    schema: dict[str, Any],
    topic: str,
    name: str,
    depth: int,
) -> str:
    """Return JSON text that fits a schema, except for some extreme values."""
    schema = _resolve(document, schema)
    if "anyOf" in schema:
        return _value(rng, document, rng.choice(schema["anyOf"]), topic, name, depth)
    kind = schema.get("type", "string")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if rng.random() < 0.1 or depth > 6:
        odd = rng.choice(_ODD)
        return odd if odd.lstrip("-").isdigit() and rng.random() < 0.8 else json.dumps(odd)
    if kind == "object":
        fields = []
        for field, item in schema.get("properties", {}).items():
            if field in schema.get("required", ()) or rng.random() < 0.5:
                fixed = {"topic": topic, "topic_name": f"{name}-new", "group": name}.get(field)
                text = (
                    json.dumps(fixed)
                    if fixed
                    else _value(rng, document, item, topic, name, depth + 1)
                )
                fields.append(f"{json.dumps(field)}:{text}")
        return "{" + ",".join(fields) + "}"
    if kind == "array":
        items = [
            _value(rng, document, schema.get("items", {}), topic, name, depth + 1)
            for _ in range(rng.choice((0, 1, 2)))
        ]
        return "[" + ",".join(items) + "]"
    if kind in ("integer", "number"):
        return rng.choice(
            (
                "0",
                "1",
                "1",
                str(schema.get("minimum", 0)),
                str(schema.get("maximum", 9)),
                "9223372036854775807",
            )
        )
    return {"boolean": "true", "null": "null"}.get(
        kind, json.dumps(rng.choice(schema.get("enum", None) or ["1", "w", "ü"]))
    )
