"""Read an OpenAPI document: the responses that it declares, and whether a response agrees with them."""

import re
from collections.abc import Mapping
from typing import Any, Protocol

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.support.http.api_server import EVENTS, NDJSON

ROOT = "urn:openapi"
SOMETIMES = {"Milena-Error", "Milena-Record-Format"}
"""The declared headers that a response may lack: for an internal error, or a media type that names its format."""


class Received(Protocol):
    """A response of any of the tests' clients."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...
    @property
    def json(self) -> Any: ...


class Description:
    """One document. ``strict`` schemas refuse undeclared fields, so that the document cannot omit a field."""

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
        """Return the validator of a place in the document, such as ``/components/schemas/Topic``."""
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
        """Return the error codes that a response may have."""
        schema = response.get("content", {}).get("application/json", {}).get("schema", {})
        codes: list[int] = schema.get("properties", {}).get("error_code", {}).get("enum", [])
        return codes

    def template(self, method: str, raw_path: str) -> str:
        """Return the document's path for a request's path; paths without parameters have precedence."""
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
        """Check that the document declares the response; return its operation, status and error code."""
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
    """Return whether the response is a stream: it has no end, and its parts have no schema."""
    return answer.headers.get("Content-Type") in (NDJSON, EVENTS)


def _resource(document: Any) -> Resource[Any]:
    return Resource.from_contents(document, default_specification=DRAFT202012)


def _closed(node: Any) -> Any:
    """Return a copy of the schema in which objects may have no undeclared fields."""
    if isinstance(node, list):
        return [_closed(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    copy = {name: _closed(inner) for name, inner in node.items()}
    if copy.get("type") == "object" and "properties" in copy:
        copy.setdefault("additionalProperties", False)
    return copy
