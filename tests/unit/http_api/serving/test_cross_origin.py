"""Pages of origins that the node is configured with may read and write; pages of others may not."""

import pytest

from http_api.routes import ROUTES
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import JSON_V2, serving

OURS, OTHER = "https://app.example", "https://evil.example"
RECORD = {"records": [{"value": 1}]}


def says(answer):
    return {name: value for name, value in answer.headers.items() if "Access-Control" in name}


@pytest.fixture
async def api():
    async with serving(origins=[OURS]) as made:
        made.node.add_topic("t")
        yield made


@pytest.mark.parametrize("path", ["/topics", "/nothing", "/topics/t/partitions/0/records"])
async def test_an_allowed_page_reads_answers_and_errors(api, path):
    answer = await api.get(path, headers={"Origin": OURS})
    assert answer.headers["Access-Control-Allow-Origin"] == OURS
    assert "Milena-Next-Offset" in answer.headers["Access-Control-Expose-Headers"]
    assert answer.headers["Vary"] == "Origin"


async def test_it_follows_a_stream(api):
    await api.produce("t", [{"value": 1}])
    path = "/topics/t/partitions/0/records?count=1"
    answer = await api.get(path, headers={"Origin": OURS, "Accept": "text/event-stream"})
    assert answer.headers["Access-Control-Allow-Origin"] == OURS
    assert b"data:" in answer.body


@pytest.mark.parametrize("origin", [OTHER, "null", "*", "https://app.example:8443", OURS.upper()])
async def test_no_other_page_does(api, origin):
    answer = await api.get("/topics", headers={"Origin": origin})
    assert says(answer) == {}
    assert answer.headers["Vary"] == "Origin", "a cache must not give it the answer of another"


async def test_nobody_is_told_anything_where_no_origin_is_configured():
    async with serving() as api:
        answer = await api.get("/topics", headers={"Origin": OURS})
        assert says(answer) == {}
        assert "Vary" not in answer.headers


async def test_a_browser_asks_before_it_writes(api):
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    told = says(await api.call("OPTIONS", "/topics/t", headers={"Origin": OURS, **asks}))
    assert told["Access-Control-Allow-Origin"] == OURS
    assert "POST" in told["Access-Control-Allow-Methods"]
    assert "Content-Type" in told["Access-Control-Allow-Headers"]
    taken = set(told["Access-Control-Allow-Headers"].split(", "))
    declared = {name for route in ROUTES for name in route.header_names}
    assert declared <= taken
    assert not says(await api.call("OPTIONS", "/topics/t", headers={"Origin": OTHER, **asks}))


@pytest.mark.parametrize(("origin", "status"), [(OURS, 200), (OTHER, 415)])
@pytest.mark.parametrize("is_repeated", [False, True])
async def test_plain_text_is_taken_from_allowed_pages_alone(api, origin, status, is_repeated):
    headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
    for _ in range(1 + is_repeated):
        answer = await api.post("/topics/t", b"a", "text/plain", headers=headers)
        assert answer.status == status


async def test_a_page_gets_the_header_with_every_write(api):
    for _ in range(2):  # the second one would have gone the quick way
        answer = await api.post("/topics/t", RECORD, JSON_V2, headers={"Origin": OURS})
        assert answer.headers["Access-Control-Allow-Origin"] == OURS


@pytest.mark.parametrize("type_", ["text/plain", None])
@pytest.mark.parametrize("origin", [OTHER, "null", "http://HOST.evil.example", "http://HOST:1"])
@pytest.mark.parametrize("path", ["/topics/t", "/drain"])
async def test_what_browsers_leave_out_over_plain_http_lets_nobody_in(api, path, origin, type_):
    """``Sec-Fetch-Site`` is told to https and localhost alone; ``Origin`` comes with every write."""
    host = api.base_url.removeprefix("http://")
    headers = {"Origin": origin.replace("HOST", host.partition(":")[0])}
    for _ in range(2):
        assert (await api.post(path, b"{}", type_, headers=headers)).error == (415, 415)
    assert not api.node.produce_requests
    assert not api.node.drains


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "log.example:8082", "Origin": "http://log.example:8082"},
        {"Host": "Log.example", "Origin": "https://log.example"},
        {"X-Forwarded-Host": "log.example", "Origin": "https://log.example"},
        {"Origin": OURS},
    ],
)
async def test_the_own_origin_needs_no_list(headers):
    node = FakeNode()
    node.add_topic("t")
    async with serving(node, origins=(OURS,), hosts=("log.example",)) as api:
        answer = await api.post("/topics/t", b"a", "text/plain", headers=headers)
        assert answer.status == 200


def unasked():
    """Requests that any page can make a browser send, and that change something: without a body, or as a link."""
    for route in ROUTES:
        if route.body is None and (route.method == "POST" or route.takes_records):
            yield route


FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": OTHER},
    {"Origin": "null"},
    # All that comes with an image over plain http.
    {"Referer": f"{OTHER}/page"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize("route", list(unasked()), ids=lambda route: route.operation_id)
async def test_what_changes_something_without_a_body_is_refused_from_other_pages(
    api, route, headers
):
    names = {"group": "g", "instance": "c", "topic": "t", "partition": "0"}
    path = route.path
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value)
    before = (repr(api.node.consumers.known), list(api.node.drains))
    answer = await api.call(route.method, path, headers=headers)
    assert answer.error == (403, 40301), answer
    assert (repr(api.node.consumers.known), list(api.node.drains)) == before
    for own in ({}, {"Origin": OURS, "Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "none"}):
        assert (await api.call(route.method, path, headers=own)).status != 403


def with_bodies():
    """Endpoints that read a body and change something."""
    return [route for route in ROUTES if route.body is not None and route.method == "POST"]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize("type_", [None, "", " ", "text/plain", "Text/Plain;charset=UTF-8"])
@pytest.mark.parametrize("route", with_bodies(), ids=lambda route: route.operation_id)
async def test_a_body_that_browsers_send_unasked_is_refused_from_other_pages(
    api, route, type_, headers
):
    names = {"group": "g", "instance": "c", "topic": "t", "partition": "0"}
    path = route.path
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", value)
    body = b'{"records":[{"value":1}]}'
    answer = await api.post(path, body, type_, headers=headers)
    assert answer.error == (415, 415), answer
    assert not api.node.produce_requests


async def test_a_page_does_not_take_a_consumers_records(api):
    await api.produce("t", [{"value": 1}])
    await api.post("/consumers/g", {"name": "c", "format": "json", "auto.offset.reset": "earliest"})
    await api.post("/consumers/g/instances/c/subscription", {"topics": ["t"]})
    path = "/consumers/g/instances/c/records"
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert (await api.get(path, headers=headers)).status == 403
    (record,) = (await api.get(path)).json
    assert record["value"] == 1


async def test_a_link_from_another_page_may_be_followed(api):
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert (await api.get("/topics", headers=headers)).status == 200
