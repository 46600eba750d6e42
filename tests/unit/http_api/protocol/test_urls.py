"""Absolute URLs as the client sees the server."""

import pytest
from aiohttp.test_utils import make_mocked_request

from http_api.protocol.urls import base_url, path_of
from milena.model.errors import MalformedRequestError


def base(**headers):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return base_url(make_mocked_request("GET", "/", headers=names))


@pytest.mark.parametrize(
    ("headers", "url"),
    [
        ({"Host": "a:8082"}, "http://a:8082"),
        ({"Host": "[::1]:8082"}, "http://[::1]:8082"),
        ({"Host": "a", "X_Forwarded_Host": "b:1", "X_Forwarded_Proto": "https"}, "https://b:1"),
        ({"Host": "a", "X_Forwarded_Host": "b, c", "X_Forwarded_Proto": "HTTPS,http"}, "https://b"),
        ({"Host": "a", "X_Forwarded_Path": "/kafka/"}, "http://a/kafka"),
        ({"Host": "a", "Forwarded": 'for=1.2.3.4;host="b:9";proto=https, host=c'}, "https://b:9"),
        ({"Host": "a", "Forwarded": "Proto=https", "X_Forwarded_Host": "x"}, "https://x"),
    ],
)
def test_the_outermost_address_wins(headers, url):
    assert base(**headers) == url


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "a b"},
        {"Host": "a/b"},
        {"Host": "a", "X_Forwarded_Proto": "mqtt"},
        {"Host": "a", "X_Forwarded_Host": "<script>"},
        {"Host": "a", "X_Forwarded_Path": "//evil\\x"},
        {"Host": "a", "Forwarded": 'host="x y"'},
    ],
)
def test_refuses_headers_that_would_make_no_url(headers):
    with pytest.raises(MalformedRequestError):
        base(**headers)


@pytest.mark.parametrize(
    "path", ["/consumers/g", "/v3/clusters", "/consumers/a%20b", "/consumers/g/"]
)
@pytest.mark.parametrize("prefix", ["", "/up", "/up/here"])
@pytest.mark.parametrize("query", ["", "?timeout=1"])
def test_a_proxy_names_the_prefix_or_the_whole_path(path, prefix, query):
    for forwarded in (prefix, prefix + path + query):
        headers = {"Host": "a", "X-Forwarded-Path": forwarded}
        assert (
            base_url(make_mocked_request("POST", path + query, headers=headers))
            == f"http://a{prefix}"
        )


def test_parts_of_a_path_are_encoded():
    assert path_of("topics", "a/b c", 1) == "/topics/a%2Fb%20c/1"
