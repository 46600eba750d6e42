"""The command line against three real nodes."""

import asyncio
import json
import subprocess
import sys
import time

import pytest

from loadtest.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

DEADLINE_S = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    nodes = LocalCluster(tmp_path_factory.mktemp("cluster"))
    try:
        nodes.start()
        asyncio.run(nodes.wait_ready())
        yield nodes
    finally:
        nodes.kill()


def milena(node, *words):
    command = [sys.executable, "-m", "milena", "--url", node.url, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def eventually(node, *words, code):
    """The command's result once it ends with ``code``: views of other nodes follow within moments."""
    deadline_s = time.monotonic() + DEADLINE_S
    while (done := milena(node, *words)).returncode != code and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_a_topic_from_creation_to_deletion(cluster):
    one, two, three = cluster.nodes
    created = milena(
        one, "topics", "create", "flights", "--partitions", "6", "--replication-factor", "3",
        "--config", "retention.ms=3600000",
    )  # fmt: skip
    assert created.returncode == 0, created.stderr
    assert created.stdout == "created topic flights: 6 partitions, replication factor 3\n"

    described = milena(two, "topics", "describe", "flights", "--json")
    assert described.returncode == 0, described.stderr
    topic = json.loads(described.stdout)
    assert [p["high_watermark"] for p in topic["partitions"]] == [0] * 6
    assert {r for p in topic["partitions"] for r in p["replicas"]} == {1, 2, 3}
    assert topic["configs"]["retention.ms"] == "3600000"

    again = milena(three, "topics", "create", "flights")
    assert (again.returncode, again.stdout) == (5, "")
    assert "already exists" in again.stderr

    listed = milena(three, "topics", "list", "--json")
    assert [t["name"] for t in json.loads(listed.stdout)] == ["flights"]

    deleted = milena(two, "topics", "delete", "flights", "--yes")
    assert deleted.returncode == 0, deleted.stderr
    assert milena(two, "topics", "describe", "flights").returncode == 4
    eventually(one, "topics", "describe", "flights", code=4)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("create", "no/slash"), "no/slash"),
        (("create", "t", "--replication-factor", "4"), "Replication factor 4"),
        (("create", "t", "--config", "no.such=1"), "no.such"),
        (("create", "t", "--config", "retention.ms=soon"), "retention.ms"),
    ],
)
def test_a_bad_topic_is_refused_in_one_line(cluster, words, complaint):
    done = milena(cluster.nodes[0], "topics", *words)
    assert done.returncode == 1
    assert done.stderr.startswith("milena: ")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_status_follows_the_life_of_the_nodes(cluster):
    one, two, _ = cluster.nodes
    assert milena(one, "topics", "create", "status-topic", "--partitions", "3").returncode == 0
    healthy = eventually(one, "status", code=0)
    assert healthy.stdout.endswith("healthy\n")

    two.process.kill()
    degraded = eventually(one, "status", "--json", code=1)
    assert 2 in json.loads(degraded.stdout)["nodes_down"]
    assert milena(two, "status").returncode == 2

    two.process.start()
    asyncio.run(cluster.wait_ready(two))
    eventually(one, "status", code=0)
