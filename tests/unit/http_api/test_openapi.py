"""The description of the API: valid, complete, and made of the tables that requests are dispatched from."""

from pathlib import Path

import orjson
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from http_api.describing.params import ParamPlace
from http_api.protocol.errors import ERROR_TABLE
from http_api.routes import ROUTES
from http_api.serving.endpoint import Route
from http_api.serving.openapi import HEADERS, encode_document, errors_of, make_document
from http_api.shapes import requests
from http_api.shapes.blocks import Shape, fields, text
from milena.model.errors import DrainingError, MilenaError
from tests.support.http.openapi import Description

OPERATIONS = Path(__file__).parents[2] / "data" / "wire" / "operations.txt"
SIZE_MAX = 308 << 10

DOCUMENT = Description(orjson.loads(encode_document(ROUTES)))
METHODS = {"get", "put", "post", "patch", "delete"}

by_operation = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation_id)


def test_it_is_valid_openapi():
    validate(DOCUMENT.document)


def test_it_is_small_enough_to_be_asked_for_at_each_start_of_a_client():
    assert len(encode_document(ROUTES)) < SIZE_MAX


def test_routes_and_operations_are_the_same():
    described = {
        (method.upper(), path)
        for path, methods in DOCUMENT.document["paths"].items()
        for method in methods
    }
    assert described == {(route.method, route.path) for route in ROUTES}
    assert {method.lower() for method, _ in described} <= METHODS


def test_ids_of_operations_are_unique_and_stay_what_they_are():
    """Generated clients are made of these names: a line that goes breaks somebody's code."""
    lines = [f"{route.operation_id} {route.method} {route.path}" for route in ROUTES]
    assert len({route.operation_id for route in ROUTES}) == len(ROUTES)
    assert OPERATIONS.read_text(encoding="utf-8").splitlines() == sorted(lines)


def test_every_tag_is_explained_and_used():
    explained = [tag["name"] for tag in DOCUMENT.document["tags"]]
    assert all(tag["description"] for tag in DOCUMENT.document["tags"])
    assert set(explained) == {route.tag for route in ROUTES}


@by_operation
def test_an_operation_describes_what_it_takes(route):
    operation = DOCUMENT.operation(route.method, route.path)
    described = [DOCUMENT.resolve(param) for param in operation.get("parameters", [])]
    names = [p["name"] for p in described if p["in"] == "path"]
    assert names == list(route.path_names)
    assert all(p["required"] for p in described if p["in"] == "path")
    assert all(p["description"] and p["schema"] for p in described)
    assert operation["summary"]
    if route.method in ("PATCH", "POST", "PUT"):
        assert operation["requestBody"]["content"]
    else:
        assert "requestBody" not in operation


@by_operation
def test_an_operation_describes_what_it_answers(route):
    responses = DOCUMENT.responses(route.method, route.path)
    successes = [status for status in responses if status.startswith("2")]
    assert successes
    assert "500" in responses
    for status, response in responses.items():
        assert response["description"], status
        assert "X-Request-Id" in response["headers"], status
        assert set(response["headers"]) <= set(HEADERS)
        for header in response["headers"].values():
            assert DOCUMENT.resolve(header)["schema"]


@by_operation
def test_the_errors_of_an_operation_have_the_codes_of_the_one_table(route):
    responses = DOCUMENT.responses(route.method, route.path)
    declared = {
        (int(status), code)
        for status, response in responses.items()
        for code in DOCUMENT.error_codes(response)
        if status != "500"
    }
    rows = {kind: ERROR_TABLE[kind] for kind in errors_of(route)}
    assert {status for status, _ in declared} == {row.status for row in rows.values()}
    assert {code for _, code in declared} == {
        route.topic_missing_code if kind.code == "topic_not_found" else row.error_code
        for kind, row in rows.items()
    }
    for status, response in responses.items():
        if status in ("429", "503") and DOCUMENT.error_codes(response):
            assert "Retry-After" in response["headers"]


def test_every_error_of_the_table_is_declared_by_some_operation_or_is_of_none():
    declared = {kind for route in ROUTES for kind in errors_of(route)}
    of_no_operation = {kind.code for kind in ERROR_TABLE if kind not in declared}
    assert of_no_operation == {
        # Paths and methods that no operation has.
        "route_not_found", "method_not_allowed",
        # Bytes that the HTTP parser refuses.
        "headers_too_large", "unsupported_http_version", "url_too_long",
        # Between nodes; no client is told.
        DrainingError.code, "stale_leader_epoch", "stale_controller_epoch", "broker_id_in_use",
        # Answers to members of groups that use Kafka's protocol.
        "generation", "group_subscribed", "inconsistent_group_protocol", "instance_held", "invalid_session_timeout",
        "member_id_required", "rebalance_in_progress",
        # Faults: 500 stands with each operation.
        "internal_error", "corrupt_batch", "disk_failed", "startup",
    }  # fmt: skip


def test_examples_are_valid_under_their_schemas():
    shapes = [shape for shape in vars(requests).values() if isinstance(shape, Shape)]
    with_example = [shape for shape in shapes if shape.example is not None]
    assert len(with_example) >= 6
    for shape in with_example:
        DOCUMENT.validator(f"/components/schemas/{shape.name}").validate(shape.example)


@by_operation
def test_examples_and_defaults_of_parameters_are_valid(route):
    for param in route.params:
        schema = orjson.loads(orjson.dumps(param.schema))
        if param.place is ParamPlace.PATH:
            assert param.example is not None
        for value in (param.example, schema.get("default")):
            if value is not None:
                Draft202012Validator(schema).validate(value)


def test_two_shapes_of_one_name_are_a_mistake():
    twins = [Shape("Twin", fields(a=text())), Shape("Twin", fields(b=text()))]
    routes = [
        Route(
            line=f"GET /{number}",
            handler=ROUTES[0].handler,
            operation_id=f"twin{number}",
            tag=ROUTES[0].tag,
            access=ROUTES[0].access,
            summary="x",
            answers=(
                type(ROUTES[0].answers[0])(description="x", content={"application/json": twin}),
            ),
        )
        for number, twin in enumerate(twins)
    ]
    with pytest.raises(AssertionError, match="two shapes are named Twin"):
        make_document(routes)


def test_meanings_of_errors_are_whole_sentences():
    for kind in ERROR_TABLE:
        assert issubclass(kind, MilenaError)
        assert (kind.__doc__ or "").strip(), kind


async def test_it_is_served_as_it_was_made(api):
    answer = await api.get("/openapi.json")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.body == encode_document(ROUTES)
    head = await api.call("HEAD", "/openapi.json")
    assert (head.status, head.body) == (200, b"")
