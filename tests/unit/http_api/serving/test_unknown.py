"""What an endpoint does not know, parameters and conditions, is refused: who asks for it believes in it."""

import re

import pytest

from http_api.describing.params import ParamPlace
from http_api.routes import ROUTES
from http_api.serving.unknown import CONDITIONS, TRANSACTION_HEADER
from tests.support.fakes.ports import CLUSTER_ID
from tests.support.http.api_server import JSON_V2, TEXT_V2, V3

OF_CACHES = {"If-None-Match", "If-Modified-Since"}
RECORDS = {"records": [{"value": 1}]}

by_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation_id)


def path_of(route) -> str:
    """A path of the endpoint; what it names need not exist: nobody looks for it."""
    return re.sub(r"\{\w+\}", "1", route.path.replace("{cluster}", CLUSTER_ID))


def query_names(route) -> list[str]:
    return [param.name for param in route.params if param.place is ParamPlace.QUERY]


async def refusal(api, method, path, **options) -> str:
    answer = await api.call(method, path, **options)
    assert answer.error == (400, 400)
    assert answer.headers["Milena-Error"] == "malformed_request"
    return answer.json["message"]


@by_route
async def test_an_endpoint_that_writes_no_records_refuses_to_be_part_of_a_transaction(api, route):
    if TRANSACTION_HEADER in route.header_names:
        return
    path, headers = path_of(route), {TRANSACTION_HEADER: "1:0"}
    message = await refusal(api, route.method, path, headers=headers)
    assert message == (
        "this endpoint does nothing within a transaction: send the request without Milena-Transaction"
    )


def test_the_table_has_endpoints_with_parameters_and_without():
    assert {bool(query_names(route)) for route in ROUTES} == {True, False}


@by_route
async def test_every_endpoint_refuses_a_parameter_that_it_does_not_know(api, route):
    message = await refusal(api, route.method, f"{path_of(route)}?zone=read_committed")
    known = ", ".join(sorted(query_names(route)))
    hint = f"this endpoint knows {known}" if known else "this endpoint takes none"
    assert message == f"Unknown parameter 'zone': {hint}"


READERS_WITH_FORMATS = {"fetchRecords", "fetchTopic"}
"""They honour the parameter in each of their types (tests/unit/http_api/v2/test_v2_fetch.py)."""


@by_route
@pytest.mark.parametrize("name", ["format", "keys"])
async def test_a_form_of_records_is_refused_where_it_has_no_effect(api, route, name):
    if name == "format" and route.operation_id in READERS_WITH_FORMATS:
        return
    message = await refusal(api, route.method, f"{path_of(route)}?{name}=text")
    assert message.startswith(f"Unknown parameter '{name}': ")
    assert not api.node.produce_requests


@pytest.mark.parametrize(
    "path",
    ["/topics/t", "/topics/t/partitions/0", "/topics/t/partitions/0/records", "/transactions"],
)
async def test_a_write_with_a_form_in_its_query_is_told_where_it_belongs(api, path):
    for name in ("format", "keys"):
        message = await refusal(api, "POST", f"{path}?{name}=text")
        assert message.endswith(
            f": the Content-Type says how keys and values are written, such as {TEXT_V2}"
        )


@by_route
async def test_every_endpoint_knows_what_it_declares(api, route):
    for name in query_names(route):
        answer = await api.call(route.method, f"{path_of(route)}?{name}=")
        assert b"Unknown parameter" not in answer.body, name
        misspelt = await refusal(api, route.method, f"{path_of(route)}?{name}s=1")
        assert misspelt == f"Unknown parameter '{name}s': did you mean '{name}'?"


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("POST", "/topics/t?ack=1", "'ack': did you mean 'acks'?"),
        ("POST", "/topics/t?acks=1&ACKS=0", "'ACKS': did you mean 'acks'?"),
        ("POST", "/topics/t?asynch=true", "'asynch': did you mean 'async'?"),
        ("POST", "/topics/t?timeout=1", "'timeout': did you mean 'timeout_ms'?"),
        (
            "GET",
            f"{V3}/topics?page_size=5",
            "'page_size': this endpoint knows include_authorized_operations",
        ),
        ("POST", f"{V3}/topics/t/records?ack=1", "'ack': did you mean 'acks'?"),
        ("GET", "/metadata?sinse=1", "'sinse': did you mean 'since'?"),
        ("GET", "/readyz?verbose", "'verbose': this endpoint takes none"),
        ("GET", "/topics?=1", "'': this endpoint takes none"),
        ("GET", "/topics?caf%C3%A9=1", "'café': this endpoint takes none"),
        # Known elsewhere: in the path, among the headers.
        ("GET", "/topics/t?topic=t", "'topic': this endpoint takes none"),
        (
            "POST",
            "/topics/t?Idempotency-Key=",
            "'Idempotency-Key': this endpoint knows acks, async, timeout_ms",
        ),
    ],
)
async def test_the_nearest_name_is_told_in_every_dialect(api, method, path, message):
    assert await refusal(api, method, path) == f"Unknown parameter {message}"
    assert not api.node.produce_requests


async def test_a_head_is_refused_as_its_get_is(api):
    for query, status in (("?x=1", 400), ("?offset=0", 200)):
        path = f"/topics/t/partitions/0/records{query}"
        assert (await api.call("HEAD", path)).status == status


async def test_of_a_parameter_that_is_repeated_the_last_counts(api):
    for acks in ("acks=9&acks=1", "acks=1&timeout_ms=5&acks=all"):
        assert (await api.produce("t", [{"value": 1}], f"?{acks}")).status == 200
    assert (await api.produce("t", [{"value": 1}], "?acks=1&acks=9")).error == (400, 400)


@pytest.mark.parametrize("query", ["?", "?&", "?&&acks=1&"])
async def test_a_query_without_names_asks_for_nothing(api, query):
    assert (await api.produce("t", [{"value": 1}], query)).status == 200


async def test_a_query_that_cannot_be_read_is_refused_where_none_is_taken(api):
    for query in ("?a=%FF", "?" + "&".join(f"a{n}=" for n in range(65))):
        assert "query string" in await refusal(api, "GET", f"/topics{query}")


async def test_paths_of_no_endpoint_are_told_so(api):
    answer = await api.get("/nope?x=1")
    assert answer.error == (404, 404)
    assert answer.json["message"] == "no endpoint at /nope; /openapi.json lists them"
    assert (await api.call("PATCH", "/topics/t?x=1")).error == (405, 405)
    assert (await api.call("OPTIONS", "/topics/t?x=1")).status == 204


# -- conditions


CONDITIONAL = {"produceToTopic", "produceToPartition", "produceBatch"}
"""They know one condition."""


def test_those_that_know_a_condition_declare_it():
    assert {
        route.operation_id for route in ROUTES if "If-Match" in route.header_names
    } == CONDITIONAL


@by_route
async def test_every_endpoint_refuses_conditions_but_its_own_and_those_of_caches(api, route):
    known = "If-Match alone" if route.operation_id in CONDITIONAL else "no conditions"
    taken = OF_CACHES if route.method == "GET" else route.header_names
    for name in set(CONDITIONS) - taken:
        message = await refusal(api, route.method, path_of(route), headers={name: '"1"'})
        assert message == f"this endpoint knows {known}: send the request without {name}"


@pytest.mark.parametrize("name", CONDITIONS)
async def test_nothing_is_written_under_a_condition_that_is_not_understood(api, name):
    answer = await api.post("/topics/t", RECORDS, JSON_V2, headers={name.lower(): "*"})
    assert answer.error == (400, 400)
    assert not api.node.produce_requests


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_caches_may_ask_whether_it_changed_and_get_the_whole(api, method):
    headers = {"If-None-Match": "*", "If-Modified-Since": "Wed, 21 Oct 2065 07:28:00 GMT"}
    assert (await api.call(method, "/topics", headers=headers)).status == 200
    headers["If-Match"] = "*"
    assert (await api.call(method, "/topics", headers=headers)).status == 400
