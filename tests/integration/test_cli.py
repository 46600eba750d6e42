"""The command line against three real nodes."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.support.clusters.live_cluster import eventually, restart, running_cluster

pytestmark = [pytest.mark.integration, pytest.mark.smoke]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


def milena(node, *words, given=None):
    command = [sys.executable, "-m", "milena", "--url", node.url, *words]
    return subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=60, check=False
    )


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


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("topics", "describe", "no-such"), 4, "'no-such' does not exist"),
        (("topics", "alter", "wrong", "--partitions", "1"), 1, "give a number above"),
        (("topics", "alter", "wrong", "--replication-factor", "4"), 64, "there are 3"),
        (
            ("partitions", "move", "wrong", "-p", "0", "--to", "1,9"),
            1,
            "not registered: 9; registered are 1",
        ),
        (
            ("partitions", "lead", "wrong", "-p", "7", "--by", "1"),
            4,
            "has partitions 0 to 1, not 7",
        ),
        (("nodes", "remove", "1"), 1, "is a voter of the metadata quorum, which it cannot leave"),
        (("nodes", "drain", "9", "--yes"), 4, "Node 9 is not registered"),
        (("nodes", "drain", "2", "--yes"), 1, "Cannot drain node 2"),
        (
            ("groups", "reset", "g", "--topic", "wrong", "--shift-by", "1", "--yes"),
            1,
            "no committed",
        ),
        (
            ("groups", "reset", "g", "--topic", "wrong", "--to-offset", "9", "--yes"),
            1,
            "above its end",
        ),
        (("consume", "wrong", "--offset", "9"), 1, "offset 9 is above the end"),
        (("consume", "wrong", "-p", "9"), 4, "has partitions 0 to 1, not 9"),
        (("access", "set", "required"), 64, "would lock you out"),
        (("transactions", "abort", "999", "0", "--yes"), 4, "never started"),
    ],
)
def test_wrong_input_is_told_with_what_to_change(cluster, words, code, complaint):
    milena(cluster.nodes[0], "topics", "create", "wrong", "--partitions", "2", "--if-not-exists")
    done = ends_with(cluster.nodes[0], *words, code=code)
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


RECORDS = [
    {"partition": 0, "timestamp": 1000, "key": "k", "value": "v"},
    {"partition": 2, "timestamp": 1001, "key": "/w==", "key_encoding": "base64", "value": "/w==",
     "value_encoding": "base64"},
    {"partition": 1, "timestamp": 5, "key": "gone", "value": None},
    {"partition": 1, "timestamp": 4, "key": None, "value": None},
    {"partition": 0, "timestamp": 1002, "key": "", "value": "", "headers": [
        {"key": "h", "value": None}, {"key": "h", "value": ""}, {"key": "", "value": "a\nb"},
        {"key": "\u00fc", "value": "/w==", "value_encoding": "base64"}]},
    {"partition": 2, "timestamp": 1003, "key": None, "value": "line\nend \u2028 \u0000"},
]  # fmt: skip


def test_a_topic_is_copied_with_everything_that_its_records_have(cluster):
    one, two, _ = cluster.nodes
    created = milena(
        one, "topics", "create", "source", "copy", "--partitions", "3",
        "--config", "message.timestamp.before.max.ms=9223372036854775807",
        # The records are of 1970, so the next retention check would delete them.
        "--config", "retention.ms=-1",
    )  # fmt: skip
    assert created.returncode == 0, created.stderr

    def written(topic, lines):
        done = milena(two, "produce", topic, "--format", "json", given=lines)
        assert done.returncode == 0, done.stderr
        read = milena(one, "consume", topic, "--format", "json")
        assert read.returncode == 0, read.stderr
        # JSON ends a line with a line feed alone.
        return [json.loads(line) for line in read.stdout.split("\n") if line], read.stdout

    given = "".join(json.dumps(record) + "\n" for record in RECORDS)
    source, printed = written("source", given)
    assert len(source) == len(RECORDS)
    copy, _ = written("copy", printed)
    for record in source:
        record["topic"] = "copy"
    assert copy == source
    wanted = sorted(RECORDS, key=lambda record: record["partition"])
    for record, found in zip(wanted, source, strict=True):
        assert {**found, **record} == found
        assert ("headers" in found) is ("headers" in record)


def test_nodes_are_listed_with_version_and_vote(cluster):
    listed = json.loads(milena(cluster.nodes[1], "nodes", "list", "--json").stdout)
    assert [row["is_voter"] for row in listed] == [True] * 3
    assert {row["version"] for row in listed} == {version("milena")}


def test_replicas_and_leaders_are_moved(cluster):
    one = cluster.nodes[0]
    assert milena(one, "topics", "create", "moving").returncode == 0
    moved = milena(one, "partitions", "move", "moving", "-p", "0", "--to", "2,1", "--wait")
    assert moved.returncode == 0, moved.stderr
    grown = milena(one, "topics", "alter", "moving", "--replication-factor", "3")
    assert grown.returncode == 0, grown.stderr

    def has_grown():
        (part,) = json.loads(milena(one, "topics", "describe", "moving", "--json").stdout)[
            "partitions"
        ]
        return sorted(part["isr"]) == [1, 2, 3] and part["replicas"][0] == 2

    eventually(has_grown)
    led = milena(one, "partitions", "lead", "moving", "-p", "0", "--by", "3", "--json")
    assert led.returncode == 0, led.stderr
    assert json.loads(led.stdout)["preferred"] == 3


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
