"""Three real nodes: writes through each of them, acknowledgements, failures, planned stops, and a fourth that joins."""

import asyncio
import http.client
import threading
import time

import pytest

from loadtest.cluster.local_cluster import LocalCluster, LocalNode, free_ports
from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    delete_topic,
    end_offset,
    eventually,
    in_background,
    leader_of,
    metadata,
    offsets_of,
    ok,
    others,
    partition_state,
    restart,
    running_cluster,
    start_command,
    values,
    wait_in_sync,
    write,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


# -- writing ---------------------------------------------------------------------------------------


def test_a_write_through_any_node_reaches_the_leader(cluster):
    topic = create_topic(cluster.node(2), "forwarded", partitions=3)
    leaders = {leader_of(cluster, topic, p).node_id for p in range(3)}
    assert leaders == {1, 2, 3}, "leadership is spread over the nodes"
    for partition in range(3):
        for turn, node in enumerate(cluster.nodes):
            receipt = offsets_of(write(node, topic, node.node_id, partition=partition))
            assert receipt == [(partition, turn)]
    for partition in range(3):
        for node in cluster.nodes:
            assert values(node, topic, partition) == [1, 2, 3]


@pytest.mark.smoke
def test_one_request_may_write_to_partitions_of_several_leaders(cluster):
    topic = create_topic(cluster.node(1), "several", partitions=3)
    records = [{"partition": n % 3, "value": n} for n in range(9)]
    answer = call(cluster.node(3), f"POST /topics/{topic}", {"records": records})
    assert offsets_of(answer) == [(n % 3, n // 3) for n in range(9)]


@pytest.mark.smoke
def test_one_bad_record_is_reported_in_its_place_and_the_others_are_written(cluster):
    topic = create_topic(cluster.node(1), "one-bad")
    records = [{"value": "a"}, {"value": "b", "partition": 7}, {"value": "c"}]
    receipts = ok(call(cluster.node(1), f"POST /topics/{topic}", {"records": records}))["offsets"]
    assert [receipt["offset"] for receipt in receipts] == [0, None, 1]
    assert [receipt["error_code"] for receipt in receipts] == [None, 40402, None]
    assert values(cluster.node(2), topic) == ["a", "c"]


@pytest.mark.parametrize("acks", ["1", "all", "-1"])
def test_an_acknowledged_write_is_answered_with_its_offset(cluster, acks):
    topic = create_topic(cluster.node(1), f"acks{acks}")
    for turn, node in enumerate(cluster.nodes):
        assert offsets_of(write(node, topic, turn, acks=acks)) == [(0, turn)]


@pytest.mark.smoke
def test_an_unacknowledged_write_has_no_offset_and_arrives(cluster):
    topic = create_topic(cluster.node(1), "acks0")
    for node in cluster.nodes:
        assert offsets_of(write(node, topic, node.node_id, acks=0)) == [(0, None)]
    eventually(lambda: sorted(values(cluster.node(1), topic)) == [1, 2, 3])


def test_a_relaxed_topic_takes_and_gives_records_as_any_other(cluster):
    topic = create_topic(cluster.node(1), "relaxed", flush_messages=1000, flush_ms=200)
    for turn, node in enumerate(cluster.nodes):
        assert offsets_of(write(node, topic, turn)) == [(0, turn)]
    assert values(cluster.node(3), topic) == [0, 1, 2]


def topic_id(node, topic):
    return next((t["topic_id"] for t in metadata(node)["topics"] if t["name"] == topic), None)


def test_a_topic_made_again_under_its_name_never_meets_old_records(cluster):
    topic = create_topic(cluster.node(1), "again")
    for life in range(3):
        node = cluster.nodes[life]
        first = offsets_of(write(node, topic, f"life {life}", key="same-key"))
        assert first == [(0, 0)], "neither offsets nor idempotency keys are inherited"
        assert values(node, topic) == [f"life {life}"]
        old = topic_id(node, topic)
        delete_topic(node, topic)
        maker = others(cluster, node)[0]
        create_topic(maker, topic)
        new = eventually(lambda at=maker: topic_id(at, topic))
        assert new != old
        # A node that has not heard of it yet would still take the name for the old topic.
        for other in cluster.nodes:
            eventually(lambda at=other, expected=new: topic_id(at, topic) == expected)
    for node in cluster.nodes:
        assert end_offset(node, topic) == 0
        assert values(node, topic) == []


# -- too few replicas ------------------------------------------------------------------------------


def test_with_too_few_replicas_writes_are_refused_and_reads_served(cluster):
    topic = create_topic(cluster.node(1), "too-few")
    offsets_of(write(cluster.node(1), topic, "kept"))
    survivor, *dead = cluster.nodes
    for node in cluster.nodes:
        eventually(lambda at=node: values(at, topic, replica="local") == ["kept"])
    for node in dead:
        node.process.kill()
    refused = []

    def is_refused() -> bool:
        """Until the survivor knows that it is alone, a write is left in doubt: 504."""
        value = f"attempt {time.monotonic_ns()}"
        answer = write(survivor, topic, value, timeout_ms=500)
        assert answer.status in (503, 504), answer.body
        if answer.status == 503:
            refused.append(value)
        return answer.status == 503

    eventually(is_refused)
    for attempt in range(3):
        began = time.monotonic()
        answer = write(survivor, topic, f"refused {attempt}")
        assert answer.status == 503
        assert "nothing was written" in answer.json["message"]
        assert answer.headers["Retry-After"]
        assert time.monotonic() - began < 10, "at once, not when the request times out"
        refused.append(f"refused {attempt}")
    assert values(survivor, topic, offset=0) == ["kept"]
    restart(cluster, *dead)
    wait_in_sync(cluster, topic)
    offsets_of(write(survivor, topic, "back"))
    found = values(survivor, topic)
    assert (found[0], found[-1]) == ("kept", "back")
    assert not set(refused) & set(found), (
        "refused means not written; only what was in doubt may be there"
    )


def test_acks_all_is_refused_below_min_insync_replicas_while_acks_1_goes_on(cluster):
    topic = create_topic(cluster.node(1), "all-three", min_insync_replicas=3)
    offsets_of(write(cluster.node(1), topic, "by all"))
    leader = leader_of(cluster, topic)
    victim = others(cluster, leader)[0]
    victim.process.kill()
    eventually(lambda: victim.node_id not in partition_state(leader, topic)["isr"])
    end = 1
    for node in others(cluster, victim):
        answer = write(node, topic, "refused")
        assert answer.refusal == (503, 50303)
        assert "nothing was written" in answer.json["message"]
        assert offsets_of(write(node, topic, "by one", acks=1)) == [(0, end)]
        end += 1
    assert values(leader, topic) == ["by all"], "what too few hold is not shown"
    restart(cluster, victim)
    eventually(lambda: values(leader, topic) == ["by all", "by one", "by one"])


# -- stopping --------------------------------------------------------------------------------------


class Writers:
    """Writes to every partition, through the nodes in turn, without a pause; each write is repeated at most once."""

    def __init__(self, cluster: LocalCluster, topic: str, partitions: int) -> None:
        self.written: list[list[str]] = [[] for _ in range(partitions)]
        self.failed: list[str] = []
        self._cluster = cluster
        self._topic = topic
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(p,)) for p in range(partitions)]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, count: int = 5) -> None:
        """Wait until every partition has taken so many further writes."""
        goals = [len(values) + count for values in self.written]
        eventually(
            lambda: all(
                len(values) >= goal for values, goal in zip(self.written, goals, strict=True)
            )
        )

    def _run(self, partition: int) -> None:
        turn = 0
        while not self._stop.is_set():
            turn += 1
            value = f"{partition}-{turn}"
            nodes = [self._cluster.nodes[(turn + n) % 3] for n in range(2)]
            trouble = []
            for node in nodes:
                trouble.append(self._try(node, partition, value))
                if not trouble[-1]:
                    self.written[partition].append(value)
                    break
            else:
                self.failed.append(f"{value}: {trouble}")

    def _try(self, node: LocalNode, partition: int, value: str) -> str:
        """What went wrong, or nothing."""
        try:
            answer = write(node, self._topic, value, partition=partition, key=value)
        except (OSError, http.client.HTTPException) as error:
            return f"node {node.node_id}: {error!r}"
        return "" if answer.status == 200 else f"node {node.node_id}: {answer.body!r}"


def test_nodes_stop_and_start_in_turn_and_no_write_fails_that_is_repeated_once(cluster):
    topic = create_topic(cluster.node(1), "rolling", partitions=3)
    for partition in range(3):
        wait_in_sync(cluster, topic, partition)
    with Writers(cluster, topic, 3) as writers:
        writers.wait_for_more()
        for node in cluster.nodes:
            assert node.process.stop(), f"node {node.node_id} did not stop in time"
            assert node.process.exit_code == 0
            writers.wait_for_more()
            restart(cluster, node)
            writers.wait_for_more()
    assert writers.failed == []
    for partition, written in enumerate(writers.written):
        for node in cluster.nodes:
            eventually(lambda at=node, p=partition, w=written: values(at, topic, p) == w)


def test_a_cluster_that_stopped_in_order_comes_back_whole(cluster):
    topic = create_topic(cluster.node(1), "whole")
    offsets_of(write(cluster.node(1), topic, *range(100)))
    asyncio.run(cluster.stop())
    assert [node.process.exit_code for node in cluster.nodes] == [0, 0, 0]
    restart(cluster, *cluster.nodes)
    wait_in_sync(cluster, topic)
    for node in cluster.nodes:
        assert values(node, topic) == list(range(100))


@pytest.mark.smoke
def test_a_killed_leader_is_replaced_and_finds_its_place_again(cluster):
    topic = create_topic(cluster.node(1), "replaced")
    offsets_of(write(cluster.node(1), topic, "before"))
    state = partition_state(cluster.node(1), topic)
    leader = leader_of(cluster, topic)
    leader.process.kill()
    node = others(cluster, leader)[0]
    eventually(lambda: offsets_of(write(node, topic, "during", key="during")))
    after = partition_state(node, topic)
    assert after["leader"] != leader.node_id
    assert after["leader_epoch"] > state["leader_epoch"]
    assert ok(call(node, "GET /brokers"))["brokers"] == [n.node_id for n in others(cluster, leader)]
    restart(cluster, leader)
    wait_in_sync(cluster, topic)
    eventually(lambda: values(leader, topic, replica="local") == ["before", "during"])


@pytest.fixture
def hasty(tmp_path):
    """A cluster that leaves a silent leader sooner than a node gives up a write."""
    with running_cluster(tmp_path, broker_session_ms=2500) as nodes:
        yield nodes


def test_a_write_whose_leader_falls_silent_is_repeated_by_the_node_only_if_it_has_a_key(hasty):
    # A machine that stalls at the wrong moment lets the next leader come too late: then once more.
    assert any(is_repeated(hasty, f"silent-{attempt}") for attempt in range(5))


def is_repeated(cluster: LocalCluster, name: str) -> bool:
    """Whether the node brought the write with a key to the next leader; whatever it did, each record is there once."""
    topic = create_topic(cluster.node(1), name)
    leader = leader_of(cluster, topic)
    node = others(cluster, leader)[0]
    eventually(lambda: offsets_of(write(node, topic, "before", key="before")))
    leader.process.pause()
    try:
        with (
            in_background(lambda: write(node, topic, "keyed", key="k")) as keyed,
            in_background(lambda: write(node, topic, "plain")) as plain,
        ):
            first, answer = keyed.result(), plain.result()
    finally:
        leader.process.resume()
    wait_in_sync(cluster, topic)
    offsets = eventually(lambda: offsets_of(write(leader, topic, "keyed", key="k")))
    found = eventually(lambda: values(leader, topic))
    assert found[0] == "before"
    assert found.count("keyed") == 1
    # What was sent before the silence was noticed is of unknown fate. It may be noticed sooner: what was not
    # sent by then goes to the next leader, or is refused.
    assert found.count("plain") in {504: (0, 1), 200: (1,), 503: (0,)}[answer.status], answer
    return first.status == 200 and offsets_of(first) == offsets and answer.status == 504


def test_what_a_start_waits_for_is_no_warning_at_first(tmp_path):
    """Nodes of a new cluster, and of one that starts again, miss each other for a moment. That is no alarm."""
    with running_cluster(tmp_path) as cluster:
        for node in cluster.nodes:
            node.process.stop()
        restart(cluster, *cluster.nodes)
        logs = [node.log_path.read_text().splitlines() for node in cluster.nodes]
    usual = ("first start waits", "waiting for the metadata quorum", "the limit of open files")
    firsts = [
        next((line for line in lines if words in line), "") for lines in logs for words in usual
    ]
    assert sum("first start waits" in line for line in firsts) >= 2, (
        "the last to start may miss nobody"
    )
    assert not [line for line in firsts if " warning " in line]


def test_a_node_that_waits_for_voters_at_the_first_start_names_them(tmp_path):
    """The probe and the API name the missing voter. A closed cluster has no users yet, so every caller may know."""
    password = tmp_path / "password"
    password.write_text("a good password")
    password.chmod(0o600)
    settings = {"MILENA_ADMIN_PASSWORD_FILE": str(password), "MILENA_ACCESS_MODE": "required"}
    cluster = LocalCluster(tmp_path, environment=settings)
    first, second, missing = cluster.nodes
    try:
        for node in (first, second):
            node.process.start()
        reason = f"the first start of a cluster needs all voters; missing: {missing.peer}".encode()
        for path in ("GET /readyz", "GET /topics", "GET /v3/clusters"):
            eventually(lambda path=path: reason in call(first, path, is_patient=False).body)
    finally:
        cluster.kill()


@pytest.mark.parametrize("node_id", [2, 3])
def test_a_node_with_the_id_of_a_live_one_disturbs_nobody_and_is_told_why(tmp_path, node_id):
    """A new machine got a copy of another node's configuration, with a data directory and ports of its own.

    A copy of node 1 reaches no other node, because nodes dial those with lower ids.
    """
    with running_cluster(tmp_path) as cluster:
        topic = create_topic(cluster.node(1), "t", partitions=3)
        wait_in_sync(cluster, topic)
        api_port, peer_port = free_ports(2)
        twin = start_command(
            *("--node-id", str(node_id), "--data-dir", str(tmp_path / "twin")),
            *("--listen", f"127.0.0.1:{api_port}", "--peer-listen", f"127.0.0.1:{peer_port}"),
            *("--peers", ",".join(node.peer for node in cluster.nodes)),
            log_path=tmp_path / "twin.log",
        )
        sessions = count_of("raft session down", cluster)
        twin.start()
        try:
            reason = f"another live node has node_id {node_id}"
            eventually(lambda: reason in (tmp_path / "twin.log").read_text())
            address = f"127.0.0.1:{api_port}"
            eventually(lambda: reason in get(address, "/readyz"))
            for turn in range(30):
                ok(write(cluster.nodes[turn % 3], topic, turn))
                time.sleep(0.1)
        finally:
            twin.kill()
        assert count_of("raft session down", cluster) == sessions
        assert count_of(f"two live processes have node_id {node_id}", cluster) > 0
        assert not any(broker["is_fenced"] for broker in metadata(cluster.node(1))["brokers"])


def count_of(words, cluster):
    return sum(node.log_path.read_text().count(words) for node in cluster.nodes)


def get(address, path):
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()
