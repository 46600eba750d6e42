"""A fourth node joins as an observer: it holds partitions, serves every call, and has no vote."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from loadtest.cluster.local_cluster import free_ports
from loadtest.cluster.node_process import NodeProcess
from tests.support.clusters.live_cluster import (
    SESSION_MS,
    call,
    cluster_id,
    create_topic,
    eventually,
    in_background,
    metadata,
    offsets_of,
    ok,
    partition_state,
    restart,
    running_cluster,
    start_command,
    values,
    write,
)

pytestmark = pytest.mark.integration

OBSERVER = 4
PARTITIONS = 12


@dataclass(frozen=True)
class Observer:
    """The fourth node."""

    url: str
    process: NodeProcess
    node_id: int = OBSERVER


@contextmanager
def joined(cluster, directory):
    """The cluster's observer, once every node counts on it."""
    api_port, peer_port = free_ports(2)
    process = start_command(
        *("--node-id", str(OBSERVER)),
        *("--data-dir", str(directory / "observer")),
        *("--listen", f"127.0.0.1:{api_port}"),
        *("--peer-listen", f"127.0.0.1:{peer_port}"),
        # One address that answers is enough: nobody listens at the first.
        *("--join", f"127.0.0.1:1,127.0.0.1:{cluster.node(2).peer_port}"),
        log_path=directory / "observer.log",
        broker_session_ms=SESSION_MS,
    )
    observer = Observer(f"http://127.0.0.1:{api_port}", process)
    process.start()
    try:
        wait_until_in(cluster, observer)
        yield observer
    finally:
        process.kill()


def wait_until_in(cluster, observer):
    assert eventually(lambda: call(observer, "GET /readyz").status == 200), (
        observer.process.log_tail()
    )
    for node in [*cluster.nodes, observer]:
        eventually(lambda at=node: OBSERVER in ok(call(at, "GET /brokers"))["brokers"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("voters")) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def observer(cluster, tmp_path_factory):
    with joined(cluster, tmp_path_factory.mktemp("observer")) as node:
        yield node


def test_it_holds_and_leads_partitions_and_serves_every_call(cluster, observer):
    topic = create_topic(observer, "spread", partitions=PARTITIONS)
    states = [
        eventually(lambda p=p: partition_state(cluster.node(1), topic, p))
        for p in range(PARTITIONS)
    ]
    assert any(OBSERVER in state["replicas"] for state in states)
    assert any(state["leader"] == OBSERVER for state in states)
    replicas = f"/v3/clusters/{cluster_id(observer)}/brokers/{OBSERVER}/partition-replicas"
    held = ok(call(cluster.node(3), f"GET {replicas}"))["data"]
    assert len(held) == sum(OBSERVER in state["replicas"] for state in states)
    for partition in range(PARTITIONS):
        for turn, node in enumerate([observer, *cluster.nodes]):
            assert offsets_of(write(node, topic, turn, partition=partition)) == [(partition, turn)]
        assert values(observer, topic, partition) == [0, 1, 2, 3]


def test_its_death_is_noticed_and_it_comes_back_in_sync(cluster, observer):
    topic = create_topic(cluster.node(1), "survives", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        offsets_of(write(observer, topic, "before", partition=partition))
    observer.process.kill()
    for partition in range(PARTITIONS):
        where = {"partition": partition, "key": f"during-{partition}"}
        eventually(lambda at=where: offsets_of(write(cluster.node(1), topic, "during", **at)))
    assert OBSERVER not in ok(call(cluster.node(1), "GET /brokers"))["brokers"]
    observer.process.start()
    wait_until_in(cluster, observer)
    for partition in range(PARTITIONS):
        state = partition_state(observer, topic, partition)
        eventually(lambda p=partition: values(observer, topic, p) == ["before", "during"])
        if OBSERVER in state["replicas"]:
            eventually(
                lambda p=partition: (
                    values(observer, topic, p, replica="local") == ["before", "during"]
                )
            )


def refusal_of_a_topic(node):
    body = {"topic_name": f"refused-by-{node.node_id}", "replication_factor": 1}
    return call(node, "POST /admin/topics", body, is_patient=False).status


def test_it_has_no_vote(cluster, observer):
    """With two of three voters gone there is no quorum, whatever the observer thinks."""
    survivor, *dead = cluster.nodes
    for node in dead:
        node.process.kill()
    try:
        with (
            in_background(lambda: refusal_of_a_topic(survivor)) as first,
            in_background(lambda: refusal_of_a_topic(observer)) as second,
        ):
            assert {first.result(), second.result()} <= {503, 504}
    finally:
        restart(cluster, *dead)
    wait_until_in(cluster, observer)
    eventually(lambda: metadata(observer)["controller_id"] in (1, 2, 3))
    create_topic(observer, "accepted", replicas=1)
    eventually(lambda: partition_state(survivor, "accepted")["leader"])
