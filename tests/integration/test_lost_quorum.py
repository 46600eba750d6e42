"""What docs/troubleshooting.md says of a quorum that is lost: its voters come back, or what is left is read out."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    eventually,
    metadata,
    ok,
    partition_state,
    restart,
    running_cluster,
    wait_in_sync,
)

pytestmark = [pytest.mark.integration, pytest.mark.long]

COUNT = 30
TEXT = "application/vnd.kafka.text.v2+json"


@pytest.fixture
def cluster(tmp_path):
    """Three voters, each with a replica of 30 records that were acknowledged."""
    with running_cluster(tmp_path / "cluster") as found:
        create_topic(found.node(1), "orders")
        wait_in_sync(found, "orders")
        send(found.node(1), [{"key": f"k{n}", "value": f"v{n}"} for n in range(COUNT)])
        yield found


def send(node, records):
    where = "POST /topics/orders/partitions/0"
    ok(call(node, where, {"records": records}, content_type=TEXT))


def stored(node):
    found = ok(call(node, "GET /topics/orders/partitions/0/records", headers={"Accept": TEXT}))
    return [(record["key"], record["value"]) for record in found]


def dumped(data_dir, topic_id):
    """Records of a replica whose node is down, as ``milena dump`` tells them."""
    replica = data_dir / "topics" / topic_id / "0"
    done = subprocess.run(
        [sys.executable, "-m", "milena", "dump", "--records", str(replica)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_voters_that_come_back_with_their_disks_are_all_that_there_is_to_do(cluster):
    left, *gone = cluster.nodes
    before = stored(left)
    for node in gone:
        node.process.kill()
    eventually(lambda: not metadata(left)["is_current"])
    restart(cluster, gone[0])
    eventually(lambda: call(left, "GET /topics").status == 200)
    eventually(lambda: partition_state(left, "orders")["leader"] is not None)
    assert eventually(lambda: stored(left)) == before


def test_what_is_left_of_a_cluster_that_lost_most_of_its_disks_is_read_out(cluster, tmp_path):
    left, *gone = cluster.nodes
    (topic,) = metadata(left)["topics"]
    for node in gone:
        node.process.kill()
        shutil.rmtree(node.data_dir)
        node.process.start()
    # Voters with empty disks bring no majority back: what it had agreed may be known to nobody else.
    eventually(lambda: all(call(node, "GET /livez").status == 200 for node in gone))
    eventually(lambda: not metadata(left)["is_current"])
    assert call(left, "GET /topics", is_patient=False).refusal == (503, 50305)
    assert call(gone[0], "GET /readyz").status == 503
    cluster.kill()
    found = dumped(left.data_dir, topic["topic_id"])
    assert [row["offset"] for row in found] == list(range(COUNT))
    with running_cluster(tmp_path / "new", node_count=1) as new:
        create_topic(new.node(1), "orders", replicas=1)
        send(new.node(1), [{"key": row["key"], "value": row["value"]} for row in found])
        assert stored(new.node(1)) == [(f"k{n}", f"v{n}") for n in range(COUNT)]
