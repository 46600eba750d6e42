"""The chart's life with real nodes: installed, upgraded, rolled back, killed, scaled, drained, uninstalled, back again.

A producer writes throughout; in the end every record that it was told is stored is read back, once, at its place. The
tests of this module are chapters of one story and build on each other.
"""

from collections.abc import Iterator

import pytest

from tests.helm.podlab import pods
from tests.helm.podlab.clients.ledger import judge
from tests.helm.podlab.helm_cli import HelmError
from tests.helm.podlab.release import (
    CLIENT,
    NAME,
    SET,
    TOPIC,
    URL,
    Release,
    milena_lab,
    overlaps,
    unclean,
)

pytestmark = [pytest.mark.integration, pytest.mark.long]

RATE = 300.0
GAP_S_MAX = 20.0
"""Longest time without an acknowledgement, upgrades and a kill included, on a busy machine."""

SECRET = f"{SET}-cluster-secret"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    with milena_lab(tmp_path_factory.mktemp("life")) as running:
        yield running


def test_install_waits_for_a_working_cluster(release: Release) -> None:
    release.helm("install")
    release.start_client()
    assert release.lab.get("StatefulSet", SET).number("status.readyReplicas") == 3
    assert len(release.get("/metadata").parts("brokers")) == 3
    assert [topic.text("name") for topic in release.get("/metadata").parts("topics")] == [TOPIC]


def test_the_release_tests_itself(release: Release) -> None:
    assert "Succeeded" in release.lab.helm("test", NAME)


def test_nodes_run_without_rights_on_a_root_that_nobody_writes(release: Release) -> None:
    node = f"{SET}-0"
    assert release.lab.execute(node, "id", "-u").out.strip() == "10001"
    assert "Read-only" in release.lab.execute(node, "sh", "-c", "echo x > /written").err
    assert release.lab.execute(node, "sh", "-c", "grep CapBnd /proc/1/status").out.split()[1] == (
        "0000000000000000"
    )


def test_writing_begins(release: Release) -> None:
    release.start_writer(RATE)
    wait_for_acks(release, 100)


def wait_for_acks(release: Release, more: int) -> None:
    """Wait until the writer was told of so many more records."""
    wanted = len(release.acknowledged()) + more
    release.lab.wait_for(lambda: len(release.acknowledged()) >= wanted, 30, f"{more} more records")


def test_a_changed_setting_rolls_the_nodes_one_by_one(release: Release) -> None:
    secret = release.lab.get("Secret", SECRET).text("data.cluster-secret")
    mark = release.mark()
    release.helm("upgrade", "--set", "config.log_level=debug", timeout_s=240)
    stops = release.stops_since(mark)
    assert [stop.pod for stop in stops] == [f"{SET}-{n}" for n in (2, 1, 0)]
    assert not unclean(stops)
    assert not overlaps(release.lab.journal.entries[mark:])
    assert release.lab.get("Secret", SECRET).text("data.cluster-secret") == secret
    assert release.failed_writes() == []


def test_an_upgrade_without_a_change_rolls_nothing(release: Release) -> None:
    mark = release.mark()
    release.helm("upgrade", "--set", "config.log_level=debug")
    assert not release.stops_since(mark)


def test_rollback_rolls_back(release: Release) -> None:
    mark = release.mark()
    release.lab.helm("rollback", NAME, "1", "--wait", "--timeout", "240s")
    assert "debug" not in release.lab.get("ConfigMap", SET).text("data.milena.toml")
    assert len(release.stops_since(mark)) == 3
    assert not unclean(release.stops_since(mark))
    assert release.failed_writes() == []


def test_a_leader_pod_is_killed(release: Release) -> None:
    leader = release.leader_pod(0)
    uid = release.lab.get("Pod", leader).uid
    release.lab.delete_pod(leader, 0)
    release.wait_replaced(leader, uid, 90)
    wait_for_acks(release, 100)
    assert release.failed_writes() == []


def test_the_controller_crashes_and_is_restarted_in_its_pod(release: Release) -> None:
    leader = release.controller_pod()
    uid = release.lab.get("Pod", leader).uid
    release.lab.kill(leader)
    release.lab.wait_until(lambda store: not pods.is_ready(store.get("Pod", leader)), 30, "away")
    release.lab.wait_ready(leader, within_s=90)
    assert release.lab.get("Pod", leader).uid == uid
    wait_for_acks(release, 100)


def test_scaling_to_five_adds_observers_that_serve(release: Release) -> None:
    mark = release.mark()
    release.helm("upgrade", "--set", "replicas=5")
    assert not release.stops_since(mark), "nodes that are there stay"
    assert len(release.get("/metadata").parts("brokers")) == 5
    for newcomer in (f"{SET}-3", f"{SET}-4"):
        names = [
            topic.text("name") for topic in release.get("/metadata", pod=newcomer).parts("topics")
        ]
        assert names == [TOPIC]
        place = f"/topics/{TOPIC}/partitions/0"
        assert release.get(f"{place}/offsets", pod=newcomer).number("end_offset") > 0
    done = release.lab.execute(
        CLIENT,
        "milena",
        "--url",
        f"http://{SET}-4.{SET}-headless:8082",
        "topics",
        "create",
        "wide",
        "--partitions",
        "10",
        "--replication-factor",
        "3",
    )
    assert done, done.err
    wide = next(t for t in release.get("/metadata").parts("topics") if t.text("name") == "wide")
    holders = {node for part in wide.parts("partitions") for node in part.numbers("replicas")}
    assert holders == {1, 2, 3, 4, 5}
    assert release.lab.execute(CLIENT, "milena", "--url", URL, "topics", "delete", "wide", "--yes")


def test_scaling_down_is_refused_until_the_nodes_are_empty(release: Release) -> None:
    with pytest.raises(HelmError, match="would stop for good"):
        release.helm("upgrade", "--set", "replicas=3")
    assert len(release.lab.names("PersistentVolumeClaim")) == 5


def test_the_budget_lets_one_go_at_a_time(release: Release) -> None:
    lab = release.lab
    first, second = f"{SET}-1", f"{SET}-2"
    release.lab.wait_for(release.is_in_sync, 60, "all in sync")
    uid = lab.get("Pod", first).uid
    mark = release.mark()
    assert lab.cluster.evict(first)
    assert not lab.cluster.evict(second)
    assert not lab.cluster.evict(f"{SET}-0")
    release.wait_replaced(first, uid, 90)
    uid = lab.get("Pod", second).uid
    assert lab.cluster.evict(second)
    release.wait_replaced(second, uid, 90)
    assert not unclean(release.stops_since(mark))


def test_nodes_without_replicas_may_go(release: Release) -> None:
    mark = release.mark()
    release.helm("upgrade", "--set", "replicas=3,scaleDown.emptiedNodes={4,5}")
    leaving = {f"{SET}-3", f"{SET}-4"}
    release.lab.wait_for(lambda: not leaving & set(release.lab.names("Pod")), 60, "they end")
    assert {stop.pod for stop in release.stops_since(mark)} == leaving
    assert not unclean(release.stops_since(mark))
    assert len(release.lab.names("PersistentVolumeClaim")) == 5


def test_nothing_was_lost_or_doubled(release: Release) -> None:
    wait_for_acks(release, 100)
    summary = release.stop_writer()
    verdict = judge(summary.number("sent"), release.acknowledged(), release.read_back())
    print(summary.raw, *release.gaps(), release.lab.journal, sep="\n")
    assert verdict.is_clean, verdict
    assert verdict.acknowledged == summary.number("acknowledged") == summary.number("sent")
    assert summary.number("failed") == 0
    assert float(summary.scalar("longest_gap_s")) < GAP_S_MAX


def is_node(pod_name: str) -> bool:
    """Not the pod of ``helm test``, which stays until the next one so that its log can be read."""
    return pod_name.removeprefix(f"{SET}-").isdecimal()


def test_uninstall_keeps_what_the_nodes_stored(release: Release) -> None:
    lab = release.lab
    before = release.read_back()
    lab.helm("uninstall", NAME, "--wait", "--timeout", "120s")
    lab.wait_until(
        lambda store: not [pod for pod in store.all("Pod") if is_node(pod.name)],
        120,
        "the nodes end",
    )
    assert lab.names("StatefulSet") == []
    assert lab.names("PersistentVolumeClaim") == [f"data-{SET}-{n}" for n in range(5)]
    assert SECRET in lab.names("Secret")
    release.helm("install")
    assert release.read_back() == before
