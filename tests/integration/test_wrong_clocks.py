"""Real nodes, of which one has a wrong wall clock: from its start, and while it runs."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.cluster.local_cluster import LocalCluster, LocalNode
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns
from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    eventually,
    leader_of,
    metric,
    offsets_of,
    ok,
    running_cluster,
    values,
    write,
    write_batch,
)

pytestmark = pytest.mark.integration

DAY_S = 86_400
WRONG = 3
"""The node whose clock is wrong."""
PATCH = """
import os, sys, time

_path = os.environ["WRONG_CLOCKS"] + "/" + (
    sys.orig_argv[sys.orig_argv.index("--node-id") + 1] if "--node-id" in sys.orig_argv else "none"
)
_time, _time_ns, _monotonic = time.time, time.time_ns, time.monotonic
_read_at, _ahead_s = -1.0, 0


def _ahead():
    global _read_at, _ahead_s
    if _monotonic() - _read_at > 0.02:
        _read_at = _monotonic()
        try:
            with open(_path) as file:
                _ahead_s = int(file.read() or 0)
        except FileNotFoundError:
            _ahead_s = 0
    return _ahead_s


time.time = lambda: _time() + _ahead()
time.time_ns = lambda: _time_ns() + _ahead() * 10**9
"""


class Clocks:
    """The wall clocks of all nodes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def set(self, node_id: int, ahead_s: int) -> None:
        path = self.directory / str(node_id)
        path.with_suffix(".new").write_text(str(ahead_s))
        path.with_suffix(".new").replace(path)


@pytest.fixture
def clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    patch = tmp_path / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(PATCH)
    monkeypatch.setenv("PYTHONPATH", str(patch))
    monkeypatch.setenv("WRONG_CLOCKS", str(tmp_path))
    return Clocks(tmp_path)


@pytest.fixture
def start(tmp_path: Path, clocks: Clocks) -> Iterator[LocalCluster]:
    del clocks
    with running_cluster(tmp_path / "cluster", retention_check_ms=500) as cluster:
        yield cluster


def topic_led_by(cluster: LocalCluster, node: LocalNode, name: str) -> str:
    for number in range(12):
        topic = create_topic(cluster.node(1), f"{name}{number}")
        if leader_of(cluster, topic) is node:
            return topic
    raise AssertionError(f"node {node.node_id} leads none of the topics")


def wait_for_retention(cluster: LocalCluster, node: LocalNode) -> None:
    """Return once this node has looked for old records once more, and deleted those that are old by the true time."""
    topic = topic_led_by(cluster, node, f"old{time.monotonic_ns()}-")
    columns = RecordColumns(None, None, None, [b"old"], None)
    batch = encode_batch(columns, base_timestamp_ms=int(time.time() - 8 * DAY_S) * 1000)
    ok(write_batch(node, topic, batch))
    path = f"GET /topics/{topic}/partitions/0/offsets"
    eventually(lambda: ok(call(node, path))["beginning_offset"] == 1)


@pytest.mark.parametrize("ahead_s", [8 * DAY_S, -8 * DAY_S], ids=["ahead", "behind"])
def test_a_node_that_starts_with_a_wrong_clock_deletes_nothing_that_is_not_old(
    tmp_path: Path, clocks: Clocks, ahead_s: int
) -> None:
    clocks.set(WRONG, ahead_s)
    with running_cluster(tmp_path / "cluster", retention_check_ms=500) as cluster:
        node = cluster.node(WRONG)
        topic = topic_led_by(cluster, node, "paid")
        offsets_of(write(node, topic, "paid"))
        wait_for_retention(cluster, node)
        for one in cluster.nodes:
            assert values(one, topic) == ["paid"]
        assert metric(node, "clock_out_of_bounds") == 1
        assert abs(metric(node, "clock_offset_ms") - ahead_s * 1000) < 2_000
        assert metric(cluster.node(1), "clock_out_of_bounds") == 0


def test_a_clock_that_jumps_forgets_no_key_and_counts_again_once_it_is_repaired(
    start: LocalCluster, clocks: Clocks
) -> None:
    node = start.node(WRONG)
    topic = topic_led_by(start, node, "paid")
    first = offsets_of(write(node, topic, "paid", key="payment-18"))
    clocks.set(WRONG, 30 * DAY_S)
    eventually(lambda: metric(node, "clock_out_of_bounds") == 1)
    wait_for_retention(start, node)
    assert offsets_of(write(start.node(1), topic, "paid", key="payment-18")) == first
    assert values(start.node(1), topic) == ["paid"]
    clocks.set(WRONG, 0)
    eventually(lambda: metric(node, "clock_out_of_bounds") == 0)
    assert offsets_of(write(start.node(1), topic, "paid", key="payment-18")) == first
