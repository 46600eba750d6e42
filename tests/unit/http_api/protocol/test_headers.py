"""What a head says must not depend on who reads it."""

import pytest
from aiohttp.http import HttpVersion10, HttpVersion11
from multidict import CIMultiDict, CIMultiDictProxy

from http_api.protocol.headers import LISTS, SINGLE, check_headers, joined
from http_api.routes import ROUTES
from milena.model.errors import MalformedRequestError
from tests.unit.http_api.quick.test_lane import connected
from tests.unit.http_api.serving.test_separate_requests import head, names_that_are_read


def headers(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


def test_each_header_that_is_read_is_a_single_one_or_a_list():
    assert {name.lower() for name in names_that_are_read()} <= SINGLE | LISTS
    assert not SINGLE & LISTS


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_a_header_that_is_no_list_has_one_value(name):
    twice = headers((name, "a"), (name.upper(), "a"))
    check_headers(HttpVersion11, twice)
    assert joined(twice, name) == joined(twice, name.upper()) == "a"
    with pytest.raises(MalformedRequestError, match=f"'{name}' came with two values"):
        check_headers(HttpVersion11, headers((name, "a"), ("x", "y"), (name.upper(), "b")))


@pytest.mark.parametrize("name", sorted(LISTS - {"transfer-encoding"}))
def test_lines_of_a_list_are_one_list(name):
    given = headers((name, "a"), (name.upper(), "b"))
    check_headers(HttpVersion11, given)
    assert joined(given, name) == "a, b"


@pytest.mark.parametrize("coding", ["chunked", "Chunked", " chunked "])
def test_chunks_are_taken(coding):
    check_headers(HttpVersion11, headers(("Transfer-Encoding", coding)))
    with pytest.raises(MalformedRequestError, match=r"HTTP/1\.0"):
        check_headers(HttpVersion10, headers(("Transfer-Encoding", coding)))


@pytest.mark.parametrize(
    "lines", [("gzip", "chunked"), ("gzip, chunked",), ("chunked, chunked",), ("identity",), ("x",)]
)
def test_no_other_transfer_coding_is(lines):
    with pytest.raises(MalformedRequestError, match="Transfer-Encoding"):
        check_headers(HttpVersion11, headers(*(("Transfer-Encoding", line) for line in lines)))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_every_endpoint_refuses_two_values(api, route):
    path = route.path.replace("{", "").replace("}", "")
    two = ("Milena-Client-Id: a", "milena-client-id: b")
    async with connected(api) as client:
        status, _, body = await client.ask(head(path, *two, method=route.method, type_=""))
        assert status == "HTTP/1.1 400 Bad Request"
        assert b"two values" in body
        # Nothing that came behind would be read.
        assert await client.reader.read() == b""
    assert not api.node.produce_requests


@pytest.mark.parametrize("name", ["Content-Type", "ETag", "User-Agent"])
async def test_the_parser_refuses_some_headers_that_come_twice_alike(api, name):
    async with connected(api) as client:
        status, _, body = await client.ask(
            head("/topics", f"{name}: a", f"{name}: a", method="GET", type_="")
        )
        assert status.split()[1] == "400"
        assert b"Duplicate" in body
