"""The command line against three real nodes."""

import json
import subprocess
import sys

import pytest

from tests.support.clusters.live_cluster import eventually, restart, running_cluster

pytestmark = [pytest.mark.integration, pytest.mark.smoke]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


def milena(node, *words):
    command = [sys.executable, "-m", "milena", "--url", node.url, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def ends_with(node, *words, code):
    """The command's result once it ends with ``code``: views of other nodes follow within moments."""

    def found():
        done = milena(node, *words)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return eventually(found)


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
    ends_with(one, "topics", "describe", "flights", code=4)


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
    healthy = ends_with(one, "status", code=0)
    assert healthy.stdout.endswith("healthy\n")

    two.process.kill()

    def is_noticed():
        degraded = ends_with(one, "status", "--json", code=1)
        # Other things may be amiss for a moment as well.
        return 2 in json.loads(degraded.stdout)["nodes_down"]

    eventually(is_noticed)
    assert milena(two, "status").returncode == 2

    restart(cluster, two)
    ends_with(one, "status", code=0)
