"""Paths to handlers."""

import pytest

from http_api.access.needs import KNOWN
from http_api.describing.params import ParamPlace
from http_api.protocol.errors import MethodNotAllowedError
from http_api.routes import ROUTES
from http_api.serving.endpoint import Route, Tag
from http_api.serving.routing import Router
from milena.model.errors import MalformedRequestError, RouteNotFoundError


async def _nothing(call):
    raise AssertionError(call)


def route(line):
    return Route(
        line=line,
        handler=_nothing,
        operation_id="x",
        tag=Tag.NODE,
        access=KNOWN,
        summary="x",
    )


ROUTER = Router(
    [
        route("GET /"),
        route("GET /topics"),
        route("GET /topics/{topic}"),
        route("POST /topics/{topic}"),
        route("DELETE /topics/{topic}/configs/{config}"),
        route("POST /topics/{topic}/configs:alter"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "found", "names"),
    [
        ("GET", "/", "/", {}),
        ("GET", "/topics", "/topics", {}),
        ("GET", "/topics/", "/topics", {}),
        ("GET", "/topics/a", "/topics/{topic}", {"topic": "a"}),
        ("GET", "/topics/a/", "/topics/{topic}", {"topic": "a"}),
        ("GET", "/topics/a%2Fb%20c", "/topics/{topic}", {"topic": "a/b c"}),
        ("GET", "/topics/%C3%A9", "/topics/{topic}", {"topic": "é"}),
        ("POST", "/topics/a", "/topics/{topic}", {"topic": "a"}),
        ("HEAD", "/topics", "/topics", {}),
        ("POST", "/topics/a/configs:alter", "/topics/{topic}/configs:alter", {"topic": "a"}),
        (
            "DELETE",
            "/topics/a/configs/x.y",
            "/topics/{topic}/configs/{config}",
            {"topic": "a", "config": "x.y"},
        ),
    ],
)
def test_finds(method, path, found, names):
    match = ROUTER.find(method, path)
    assert (match.route.path, dict(match.names)) == (found, names)


@pytest.mark.parametrize(
    "path",
    [
        "/nope",
        "/topics/a/b",
        "/topics//",
        "//topics",
        "/topics/a/configs/x/y",
        "/topics/a/configs",
        "/v3",
    ],
)
def test_refuses_unknown_paths(path):
    with pytest.raises(RouteNotFoundError):
        ROUTER.find("GET", path)


def test_refuses_unknown_methods_and_lists_the_others():
    with pytest.raises(MethodNotAllowedError) as caught:
        ROUTER.find("DELETE", "/topics/a")
    assert caught.value.allowed == "GET, HEAD, OPTIONS, POST"


@pytest.mark.parametrize(
    "path", ["/topics/x", "/v1/topics/x", "/v3/topics/x/", "/v3/clusters/c/nope/topics/x"]
)
def test_says_where_a_topic_is_deleted(path):
    with pytest.raises((MethodNotAllowedError, RouteNotFoundError)) as caught:
        Router(ROUTES).find("DELETE", path)
    assert str(caught.value).endswith("; there is DELETE /v3/clusters/{cluster}/topics/{topic}")


def test_says_where_a_topic_is_made():
    with pytest.raises(MethodNotAllowedError) as caught:
        Router(ROUTES).find("POST", "/topics")
    assert "; there is " in str(caught.value)
    assert "POST /v3/clusters/{cluster}/topics" in str(caught.value)


@pytest.mark.parametrize("path", ["/", "/nope", "/topics", "/nope/x", "/topics/x/nope"])
def test_says_nothing_where_no_path_is_alike(path):
    with pytest.raises((MethodNotAllowedError, RouteNotFoundError)) as caught:
        Router(ROUTES).find("DELETE", path)
    assert "there is" not in str(caught.value)


def test_head_needs_a_get():
    with pytest.raises(MethodNotAllowedError) as caught:
        ROUTER.find("HEAD", "/topics/a/configs:alter")
    assert caught.value.allowed == "OPTIONS, POST"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/topics/a%0Ab", "a␊b"),
        ("/topics/%00", "␀"),
        ("/topics/%7F", "␡"),
        ("/topics/a%09", "a␉"),
    ],
)
def test_refuses_control_characters_and_shows_their_pictures(path, shown):
    with pytest.raises(MalformedRequestError, match=f"'{shown}'"):
        ROUTER.find("GET", path)


def test_refuses_names_that_are_not_utf8():
    with pytest.raises(MalformedRequestError, match="UTF-8"):
        ROUTER.find("GET", "/topics/%FF")


def test_one_route_a_method_and_path():
    with pytest.raises(AssertionError):
        Router([route("GET /a/{topic}"), route("GET /a/{group}")])


def test_the_table_describes_every_name_in_a_path():
    for row in ROUTES:
        described = [p.name for p in row.params if p.place is ParamPlace.PATH]
        assert described == list(row.path_names), row.path
        assert row.summary, row.path
        assert all(p.description for p in row.params), row.path
