"""Every endpoint of real nodes, those of the quorum and an observer: who is let in is the same on each of them.

Who may do what is proved row by row in memory (``tests/unit/http_api/access/test_access_matrix.py``). No node is
another case, whether it leads what is asked for, follows, or holds nothing of it.
"""

import base64
import http.client
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from http_api.access.needs import PUBLIC
from loadtest.cluster.local_cluster import free_ports
from milena import Credentials, Secret
from tests.support.clusters.live_cluster import (
    SESSION_MS,
    call,
    eventually,
    ok,
    running_cluster,
    start_command,
)
from tests.unit.http_api.access.test_access_matrix import ASKS, BY_ID, needed

pytestmark = pytest.mark.integration

PASSWORD = "canary-password-81c4"
NAMES = (b'"orders"', b'"billing"')
OBSERVER = 4


def basic(name, password=PASSWORD):
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


ROOT = basic("admin")


class Observer:
    """The fourth node."""

    node_id = OBSERVER

    def __init__(self, directory: Path, peer_port: int, **settings: object) -> None:
        api_port, own_port = free_ports(2)
        self.url = f"http://127.0.0.1:{api_port}"
        self.process = start_command(
            *("--node-id", str(OBSERVER)),
            *("--data-dir", str(directory / "observer")),
            *("--listen", f"127.0.0.1:{api_port}"),
            *("--peer-listen", f"127.0.0.1:{own_port}"),
            *("--join", f"127.0.0.1:{peer_port}"),
            log_path=directory / "observer.log",
            broker_session_ms=SESSION_MS,
            **settings,
        )


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    directory = tmp_path_factory.mktemp("everywhere")
    (directory / "password").write_text(f"{PASSWORD}\n")
    settings = {"admin_password_file": directory / "password"}
    credentials = Credentials(user="admin", password=Secret(PASSWORD))
    with running_cluster(directory, credentials=credentials, **settings) as cluster:
        observer = Observer(directory, cluster.node(1).peer_port, **settings)
        observer.process.start()
        try:
            found = [*cluster.nodes, observer]
            for node in found:
                eventually(
                    lambda node=node: (
                        call(node, "GET /readyz").status == 200
                        and OBSERVER in ok(call(node, "GET /brokers", headers=ROOT))["brokers"]
                    )
                )
            # Some lead it, some follow, and some have nothing of it.
            topic = {"topic_name": "orders", "partitions_count": 1, "replication_factor": 2}
            ok(call(found[0], "POST /admin/topics", topic, headers=ROOT))
            # The requests name it: a node that has not heard of a producer cannot tell whose it is.
            made = ok(call(found[0], "POST /producers", {"name": "payer"}, headers=ROOT))
            assert made["producer_id"] == 1
            yield found
        finally:
            observer.process.kill()


@pytest.fixture(scope="module")
def tokens(nodes):
    """Of ``eve``, who may nothing: one that is good, and one that was revoked."""
    ok(call(nodes[0], "PUT /users/eve", {"password": PASSWORD}, headers=ROOT))
    good, revoked = (
        ok(call(nodes[1], "POST /users/eve/tokens", {}, headers=ROOT)) for _ in range(2)
    )
    ok(call(nodes[2], f"DELETE /users/eve/tokens/{revoked['token_id']}", headers=ROOT))
    for node in nodes:
        for token, status in ((good, 200), (revoked, 401)):
            headers = {"Authorization": f"Bearer {token['token']}"}
            eventually(
                lambda node=node, headers=headers, status=status: (
                    call(node, "GET /access", headers=headers).status == status
                )
            )
    return good["token"], revoked["token"]


def send(node, ask, headers):
    cluster_id = ok(call(node, "GET /metadata", headers=ROOT))["cluster_id"]
    return call(
        node,
        f"{ask.method} {ask.at(cluster_id)}",
        ask.data,
        content_type=ask.type or "application/json",
        headers={**ask.headers, **headers},
    )


def state_of(node):
    """What a request could have changed, as a superuser sees it."""
    paths = ("/topics", "/users", "/groups", "/access", "/topics/orders/partitions/0/offsets")
    return [ok(call(node, f"GET {path}", headers=ROOT)) for path in paths]


@pytest.mark.parametrize("place", range(4), ids=["one", "two", "three", "observer"])
def test_nobody_gets_in_on_any_node_and_eve_does_nothing(nodes, tokens, place):
    node, (good, revoked) = nodes[place], tokens
    before = state_of(node)
    bad = [
        {},
        {"Authorization": "Bearer mln_nothere1_x"},
        {"Authorization": f"Bearer {good[:-1]}"},
        {"Authorization": f"Bearer {revoked}"},
    ]
    for ask in ASKS:
        access = BY_ID[ask.operation].access
        if access is PUBLIC:
            continue
        for headers in bad:
            assert send(node, ask, headers).refusal == (401, 40101), (ask, headers)
        answer = send(node, ask, {"Authorization": f"Bearer {good}"})
        if needed(ask) or access.has_more:
            assert answer.status == 403, (ask, answer)
        else:
            assert answer.status < 500, (ask, answer)
            assert not any(name in answer.body.replace(b" ", b"") for name in NAMES), ask
    assert state_of(node) == before


@pytest.mark.parametrize("place", range(4), ids=["one", "two", "three", "observer"])
def test_a_head_that_repeats_is_refused_once_its_sender_may_not(nodes, tokens, place):
    """The quick way, on one connection; an entry that is taken away counts for the next request of each node."""
    node, (good, _) = nodes[place], tokens
    cluster_id = ok(call(node, "GET /metadata", headers=ROOT))["cluster_id"]
    entry = {
        "resource_type": "TOPIC",
        "resource_name": "orders",
        "pattern_type": "LITERAL",
        "principal": "User:eve",
        "host": "*",
        "operation": "WRITE",
        "permission": "ALLOW",
    }
    assert call(node, f"POST /v3/clusters/{cluster_id}/acls", entry, headers=ROOT).status == 201
    at = urlsplit(node.url)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=30)
    headers = {
        "Authorization": f"Bearer {good}",
        "Content-Type": "application/vnd.kafka.json.v2+json",
    }

    def write() -> int:
        connection.request("POST", "/topics/orders", b'{"records":[{"value":1}]}', headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    assert eventually(lambda: write() == 200)
    assert {write() for _ in range(5)} == {200}
    ok(
        call(
            node,
            f"DELETE /v3/clusters/{cluster_id}/acls",
            headers=ROOT,
            principal="User:eve",
            resource_type="TOPIC",
            pattern_type="LITERAL",
            operation="WRITE",
            permission="ALLOW",
        )
    )
    stored = ok(call(node, "GET /topics/orders/partitions/0/offsets", headers=ROOT))
    assert {write() for _ in range(5)} == {403}
    assert ok(call(node, "GET /topics/orders/partitions/0/offsets", headers=ROOT)) == stored
    connection.close()


def test_no_secret_is_told_anywhere(nodes, tokens):
    """In no log, metric, error, argument or variable of a node, after all of the above."""
    good, revoked = tokens
    secrets = [PASSWORD, *(token.split("_", 2)[2] for token in (good, revoked))]
    for node in nodes:
        process = Path("/proc", str(node.process.pid))
        told = [
            (process / "cmdline").read_text(),
            (process / "environ").read_text(),
            node.process.log_path.read_text(),
            call(node, "GET /metrics", headers=ROOT).body.decode(),
            call(node, "GET /users/eve/tokens", headers=ROOT).body.decode(),
            call(node, "GET /topics", headers=basic("eve", f"{PASSWORD}x")).body.decode(),
        ]
        assert not [(secret, text) for secret in secrets for text in told if secret in text]
