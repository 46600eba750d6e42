"""A page of another site cannot make a node its own origin by a name that resolves to the node's address."""

import re

import pytest

from http_api.routes import ROUTES
from http_api.serving.known_hosts import KnownHosts, host_in
from milena.model.errors import ForbiddenError
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.unit.http_api.quick.test_lane import connected, request
from tests.unit.http_api.serving.test_bodies import path_of
from tests.unit.http_api.serving.test_separate_requests import head

KNOWN = [
    "localhost",
    "LOCALHOST:8082",
    "localhost.",
    "node.localhost:1",
    "127.0.0.1",
    "127.0.0.1:8082",
    "10.1.2.3:80",
    "[::1]",
    "[::1]:8082",
    "[fe80::1%25eth0]:1",
    "milena",
    "milena-0:8082",
    "milena.default.svc",
    "milena-0.milena-nodes.default.svc.cluster.local:8082",
    "ip-10-0-0-1.ec2.internal",
    "node1.test:8082",
    "h",
]
UNKNOWN = [
    "evil.example",
    "evil.example:8082",
    "EVIL.example.",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "127.0.0.1.nip.io:8082",
    "1.2.3",
    "evilcluster.local",
    "svc.evil.example",
    "x.node1.test",
    "node1.test.evil.example",
    "evil.example:80:90",
    "evil.example@localhost",
    "evil.local",
]


def hosts(*allowed: str) -> KnownHosts:
    return KnownHosts(allowed, FakeNode().ports().metadata)


@pytest.mark.parametrize("host", KNOWN)
def test_names_that_nobody_can_register_and_those_of_nodes_are_known(host):
    hosts().check(host)
    hosts().check(None)


@pytest.mark.parametrize("host", UNKNOWN)
def test_any_other_name_is_not(host):
    with pytest.raises(ForbiddenError, match=re.escape(f"'{host_in(host)}' is not a name")):
        hosts().check(host)
    hosts("*").check(host)


def test_more_names_can_be_allowed():
    known = hosts("log.example", ".Apps.example")
    for host in ("log.example:80", "a.apps.example", "a.b.apps.EXAMPLE"):
        known.check(host)
    for host in ("apps.example", "evillog.example", "a.log.example", "evilapps.example"):
        with pytest.raises(ForbiddenError):
            known.check(host)


def test_names_follow_the_brokers():
    node = FakeNode()
    known = KnownHosts((), node.ports().metadata)
    known.check("node1.test")
    node._set_image(brokers=node.image.brokers.delete(1))
    with pytest.raises(ForbiddenError):
        known.check("node1.test")


OPEN_TO_ALL = {route.operation_id for route in ROUTES if route.access.is_public}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation_id)
async def test_every_endpoint_asks_for_a_known_name(api, route):
    """Only what tells nothing of the cluster is for every name."""
    text = head(path_of(route), "Content-Length: 0", method=route.method).replace(
        b"Host: h", b"Host: evil.example:8082"
    )
    async with connected(api) as client:
        client.send(text)
        status = (await client.reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
    assert (status == b"403") == (route.operation_id not in OPEN_TO_ALL)


async def test_the_quick_lane_asks_too(api):
    async with connected(api) as client:
        await client.ask(request())
        for _ in range(2):
            evil = request().replace(b"Host: h", b"Host: evil.example")
            status, _, body = await client.ask(evil)
            assert status == "HTTP/1.1 403 Forbidden"
            assert b"allowed_hosts" in body
    assert len(api.node.produce_requests) == 1
    assert not api.node.quick_requests


async def test_an_allowed_name_is_taken_and_takes_the_lane():
    node = FakeNode()
    node.add_topic("t")
    async with serving(node, hosts=("log.example",)) as api, connected(api) as client:
        for _ in range(2):
            good = request().replace(b"Host: h", b"Host: log.example")
            assert (await client.ask(good))[0] == "HTTP/1.1 200 OK"
    assert len(node.quick_requests) == 1
