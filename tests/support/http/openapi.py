"""Reading an OpenAPI document: what it declares for an operation, and whether an answer keeps to it."""

import re
from collections.abc import Mapping
from typing import Any, Protocol

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.support.http.api_server import EVENTS, NDJSON

ROOT = "urn:openapi"
SOMETIMES = {"Milena-Error", "Milena-Record-Format"}
"""Headers that not every answer of a kind has: a bug has no word, and a type that names its format needs none."""


class Received(Protocol):
    """An answer of any of the clients of tests."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...
    @property
    def json(self) -> Any: ...


class Description:
    """One document. ``strict`` schemas refuse fields that are not described, so that none goes unmentioned."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._registry = Registry().with_resource(ROOT, _resource(_closed(document)))

    def resolve(self, node: Any) -> Any:
        """Return the target of a ``$ref``, or the node itself."""
        while "$ref" in node:
            found = self.document
            for part in node["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            node = found
        return node

    def validator(self, pointer: str) -> Draft202012Validator:
        """For what stands at a place in the document, such as ``/components/schemas/Topic``."""
        return Draft202012Validator(
            {"$ref": f"{ROOT}#{pointer}"}, registry=self._registry, format_checker=FormatChecker()
        )

    def operation(self, method: str, path: str) -> Any:
        return self.document["paths"][path][method.lower()]

    def responses(self, method: str, path: str) -> dict[str, Any]:
        responses = self.operation(method, path)["responses"]
        return {status: self.resolve(response) for status, response in responses.items()}

    @staticmethod
    def error_codes(response: Any) -> list[int]:
        """The codes that an answer may have when it is an error."""
        schema = response.get("content", {}).get("application/json", {}).get("schema", {})
        codes: list[int] = schema.get("properties", {}).get("error_code", {}).get("enum", [])
        return codes

    def template(self, method: str, raw_path: str) -> str:
        """The path of the document that a request's path belongs to; literal ones come first."""
        path = raw_path.partition("?")[0]
        found: list[str] = [
            template
            for template, methods in self.document["paths"].items()
            if method.lower() in methods
            and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path)
        ]
        assert found, f"{method} {path} is not described"
        return min(found, key=lambda template: template.count("{"))

    def check(self, method: str, raw_path: str, answer: Received) -> tuple[str, int, int | None]:
        """Assert that an answer is one that the document declares; what it is: operation, status, error code."""
        template = self.template(method, raw_path)
        responses = self.responses(method, template)
        what = f"{method} {raw_path} → {answer.status} {answer.body[:300]!r}"
        assert str(answer.status) in responses, f"{what}: a status that is not declared"
        response = responses[str(answer.status)]
        self._check_headers(response, answer, what)
        content = response.get("content", {})
        if not content:
            assert answer.body == b"", what
            return self.operation(method, template)["operationId"], answer.status, None
        type_ = answer.headers["Content-Type"].partition(";")[0]
        assert type_ in content, f"{what}: {type_} is not declared"
        pointer = self._pointer(method, template, answer.status, type_)
        if "schema" in content[type_] and "json" in type_ and not is_stream(answer):
            validator = self.validator(f"{pointer}/schema")
            errors = [f"{e.json_path}: {e.message}" for e in validator.iter_errors(answer.json)]
            assert not errors, f"{what}: {errors}"
        code = answer.json["error_code"] if self.error_codes(response) else None
        return self.operation(method, template)["operationId"], answer.status, code

    @staticmethod
    def _check_headers(response: Any, answer: Received, what: str) -> None:
        given = {name.lower() for name in answer.headers}
        for name in response["headers"]:
            is_there = name.lower() in given or name in SOMETIMES or is_stream(answer)
            assert is_there, f"{what}: no header {name}"
        of_ours = {n for n in given if n.startswith("milena-") or n in ("retry-after", "location")}
        assert of_ours <= {name.lower() for name in response["headers"]}, f"{what}: {of_ours}"

    def _pointer(self, method: str, template: str, status: int, type_: str) -> str:
        response = self.operation(method, template)["responses"][str(status)]
        base = response.get("$ref", "#").removeprefix("#")
        if not base:
            escaped = template.replace("~", "~0").replace("/", "~1")
            base = f"/paths/{escaped}/{method.lower()}/responses/{status}"
        return f"{base}/content/{type_.replace('/', '~1')}"


def is_stream(answer: Received) -> bool:
    """It has no end when its headers are sent, and no schema knows its parts."""
    return answer.headers.get("Content-Type") in (NDJSON, EVENTS)


def _resource(document: Any) -> Resource[Any]:
    return Resource.from_contents(document, default_specification=DRAFT202012)


def _closed(node: Any) -> Any:
    """A copy in which objects have no other fields than those described."""
    if isinstance(node, list):
        return [_closed(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    copy = {name: _closed(inner) for name, inner in node.items()}
    if copy.get("type") == "object" and "properties" in copy:
        copy.setdefault("additionalProperties", False)
    return copy
