"""A real node answers as it describes itself."""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

import pytest

from loadtest.cluster.local_cluster import free_ports
from tests.support.clusters.live_cluster import (
    SESSION_MS,
    cluster_id,
    create_topic,
    encoded,
    eventually,
    leader_of,
    metadata,
    offsets_of,
    others,
    running_cluster,
    start_command,
    wait_in_sync,
    write,
)
from tests.support.http.api_server import Answer
from tests.support.http.contract import (
    GONE_BROKER,
    Ask,
    asks,
    check_all,
    declared_successes,
    token_id_of,
)
from tests.support.http.openapi import Description

pytestmark = pytest.mark.integration

WRONG = [
    Ask(operation="getTopic", method="GET", path="/topics/nope", status=404),
    Ask(operation="getPartition", method="GET", path="/topics/orders/partitions/7", status=404),
    Ask(
        operation="fetchRecords", method="GET", path="/topics/nope/partitions/0/records", status=404
    ),
    Ask(
        operation="fetchRecords",
        method="GET",
        path="/topics/orders/partitions/0/records?offset=1000000",
        status=400,
    ),
    Ask(
        operation="fetchRecords",
        method="GET",
        path="/topics/orders/partitions/0/records",
        headers={"Accept": "image/png"},
        status=406,
    ),
    Ask(operation="produceToTopic", method="POST", path="/topics/orders", body=b"{", status=400),
    Ask(
        operation="produceToTopic",
        method="POST",
        path="/topics/orders",
        body={"records": []},
        status=422,
    ),
    Ask(
        operation="createTopic",
        method="POST",
        path="/admin/topics",
        body={"topic_name": "orders"},
        status=400,
    ),
    Ask(
        operation="v3CreateTopic",
        method="POST",
        path="$C/topics",
        body={"topic_name": "wide", "replication_factor": 9},
        status=400,
    ),
    Ask(operation="v3DeleteTopic", method="DELETE", path="$C/topics/nope", status=404),
    Ask(operation="v3GetCluster", method="GET", path="/v3/clusters/another", status=404),
]
"""Mistakes that a node meets in every life; all others are provoked against the API alone."""


class KeptConnection:
    """One connection to a node, kept open."""

    def __init__(self, node, known_id=None):
        where = urlsplit(node.url)
        self.cluster_id = known_id or cluster_id(node)
        self._token_id = "none"
        self._connection = http.client.HTTPConnection(where.hostname, where.port, timeout=30)

    def close(self):
        self._connection.close()

    def __call__(self, ask):
        path = ask.at(self.cluster_id, self._token_id)
        self._connection.request(ask.method, path, body=ask.data, headers=ask.sent_headers())
        response = self._connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
        self._token_id = token_id_of(answer) or self._token_id
        return ask, path, answer


def came_and_went(cluster, directory):
    """A second node registered, and is gone."""
    node = cluster.node(1)
    api_port, peer_port = free_ports(2)
    process = start_command(
        *("--node-id", str(GONE_BROKER), "--data-dir", str(directory / "gone")),
        *("--listen", f"127.0.0.1:{api_port}", "--peer-listen", f"127.0.0.1:{peer_port}"),
        *("--join", f"127.0.0.1:{node.peer_port}"),
        log_path=directory / "gone.log",
        broker_session_ms=SESSION_MS,
    )
    process.start()
    try:
        eventually(lambda: fenced(node).get(GONE_BROKER) is False)
    finally:
        process.kill()
    eventually(lambda: fenced(node)[GONE_BROKER])


def fenced(node):
    return {b["broker_id"]: b["is_fenced"] for b in metadata(node)["brokers"]}


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    directory = tmp_path_factory.mktemp("openapi")
    with running_cluster(directory, node_count=1) as cluster:
        came_and_went(cluster, directory)
        caller = KeptConnection(cluster.node(1))
        yield caller
        caller.close()


def test_every_answer_of_a_real_node_is_as_it_describes_itself(call):
    _, _, document = call(Ask(operation="getOpenApi", method="GET", path="/openapi.json"))
    description = Description(json.loads(document.body))
    # The last one, drain, is the end of this node's leaderships.
    *most, last = asks(encoded(b"1", b"2"))
    answers = [call(ask) for ask in (*most, *WRONG, last)]
    seen = check_all(description, answers)
    assert declared_successes(description) <= seen


# -- without a majority ----------------------------------------------------------------------------

SHORT = {"produceToTopic", "produceToPartition", "produceBatch"}
"""These take a time-out, and get a short one; the others have bounds of their own."""


def hurried(ask):
    if ask.operation not in SHORT or "timeout_ms" in ask.path:
        return ask
    joined = "&" if "?" in ask.path else "?"
    return replace(ask, path=f"{ask.path}{joined}timeout_ms=1000")


def test_a_node_without_a_majority_answers_as_it_describes_itself(tmp_path):
    """Records are read and leaders told; everything else is refused or of unknown fate, as the description says."""
    with running_cluster(tmp_path, node_count=3) as cluster:
        topic = create_topic(cluster.node(1), "orders")
        create_topic(cluster.node(1), "pages")
        leader = leader_of(cluster, topic)
        wait_in_sync(cluster, topic)
        offsets_of(write(leader, topic, "before"))
        caller = KeptConnection(leader)
        _, _, document = caller(Ask(operation="getOpenApi", method="GET", path="/openapi.json"))
        caller.close()
        description = Description(json.loads(document.body))
        for node in others(cluster, leader):
            node.process.kill()
        eventually(lambda: write(leader, topic, "after", timeout_ms=1000).status in (503, 504))
        calls = [hurried(ask) for ask in asks(encoded(b"1", b"2"))]
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(partial(ask_alone, leader, caller.cluster_id), calls))
    met = {}
    for ask, path, answer in answers:
        operation, status, code = description.check(ask.method, path, answer)
        met.setdefault(operation, set()).add((status, code))
    assert not [operation for operation, seen in met.items() if (500, 500) in seen]
    assert {status for status, _ in met["createTopic"]} <= {503, 504}
    # Nobody waits for what is sent off: 200 without offsets, or 204.
    assert {status for status, _ in met["produceBatch"]} <= {200, 204, 503, 504}
    assert met["getMetadata"] == met["getPartition"] == {(200, None)}
    assert met["listTopics"] == met["getTopic"] == {(503, 50305)}
    assert (503, 50305) in set().union(*met.values()), "no quorum"


def ask_alone(node, known_id, ask):
    """An ask on a connection of its own."""
    caller = KeptConnection(node, known_id)
    try:
        return caller(ask)
    finally:
        caller.close()
