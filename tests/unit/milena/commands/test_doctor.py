"""``milena doctor``: what it finds, in which order, and its exit codes."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from milena import cli
from milena.cluster.group_views import GroupSummary
from milena.cluster.node_exam import NodeExam
from milena.cluster.node_metrics import MetricsView
from milena.cluster.view import ClusterView, NodeView, PartitionView, TopicView
from milena.commands.health.diagnosis import (
    CERTIFICATE_DAYS_MIN,
    ClusterExam,
    Finding,
    Severity,
    diagnose,
)
from milena.commands.health.status_watch import GroupLag
from tests.support.command_lines import runner
from tests.support.fakes.api import FakeApi
from tests.support.http.http_server import serving


def node(node_id, **changes):
    values = {"url": f"http://n{node_id}:1", "rack": None, "is_live": True, "is_draining": False}
    return NodeView(node_id=node_id, **{**values, **changes})


def exam_of(view, **changes):
    values = {"answers_as": view.node_id, "cluster_id": "c", "version": "1", "clock_ahead_ms": 0}
    values["metrics"] = metrics()
    return NodeExam(node=view, **{**values, **changes})


def metrics(**changes):
    values = {"raft_has_leader": 1.0, "disk_free_bytes": 50e9, "partitions_under_min_isr": 0.0}
    return MetricsView(values={**values, **changes}, partitions={})


def findings(nodes=None, *, groups=(), partition=None, **view):
    nodes = [exam_of(node(1)), exam_of(node(2))] if nodes is None else nodes
    values = {"partition": 0, "leader": 1, "leader_epoch": 1, "replicas": (1, 2), "isr": (1, 2)}
    topic = TopicView(name="t", partitions=(PartitionView(**{**values, **(partition or {})}),))
    cluster = ClusterView(
        **{
            "cluster_id": "c",
            "version": 1,
            "controller_id": 1,
            "nodes": tuple(e.node for e in nodes),
            "topics": (topic,),
            **view,
        }
    )
    return diagnose(ClusterExam(view=cluster, nodes=nodes, groups=groups, lag_max=100))


def lag(of, members=1, is_known=True, group="g"):
    summary = GroupSummary(
        group_id=group,
        state="STABLE",
        generation=1,
        assignor="",
        coordinator=1,
        member_count=members,
    )
    return (GroupLag(summary=summary, lag=of, known_lag=of or 0, is_known=is_known),)


def test_of_a_healthy_cluster_every_check_is_told_to_be_well():
    found = findings()
    assert {finding.severity for finding in found} == {Severity.OK}
    assert [finding.check for finding in found] == [
        "nodes", "quorum", "leaders", "replicas", "disks", "clocks", "versions", "groups",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "severity", "check", "said"),
    [
        (
            {"nodes": [exam_of(node(1)), NodeExam(node=node(2, is_live=False), failure="refused")]},
            Severity.WRONG, "nodes", "node 2 (http://n2:1) is down: refused",
        ),
        (
            {"nodes": [exam_of(node(1)), NodeExam(node=node(2), failure="timed out")]},
            Severity.WRONG, "nodes", "cannot be asked from here: timed out",
        ),
        (
            {"nodes": [exam_of(node(1)), exam_of(node(2), answers_as=1)]},
            Severity.WRONG, "nodes", "at the URL of node 2 (http://n2:1) answers node 1",
        ),
        (
            {"nodes": [exam_of(node(1), cluster_id="other")]},
            Severity.WRONG, "nodes", "of cluster other",
        ),
        (
            {"nodes": [exam_of(node(1)), exam_of(node(2, is_live=False))]},
            Severity.WRONG, "nodes", "the cluster has fenced it",
        ),
        (
            {"nodes": [exam_of(node(1), not_ready="draining")]},
            Severity.WARNING, "nodes", "is not ready: draining",
        ),
        ({"is_current": False}, Severity.WRONG, "quorum", "no majority"),
        ({"controller_id": None}, Severity.WRONG, "quorum", "no controller"),
        (
            {"nodes": [exam_of(node(1), metrics=metrics(raft_has_leader=0.0))]},
            Severity.WRONG, "quorum", "nodes that know no Raft leader: 1",
        ),
        ({"partition": {"leader": None}}, Severity.WRONG, "leaders", "1 partitions without a leader: t-0"),
        ({"partition": {"isr": (1,)}}, Severity.WARNING, "replicas", "under-replicated: t-0"),
        (
            {"nodes": [exam_of(node(1), metrics=metrics(partitions_under_min_isr=2.0))]},
            Severity.WRONG, "replicas", "2 partitions have fewer replicas in sync",
        ),
        (
            {"nodes": [exam_of(node(1), metrics=metrics(disk_free_bytes=5e8))]},
            Severity.WRONG, "disks", "node 1 has 0.50 GB left",
        ),
        (
            {"nodes": [exam_of(node(1), metrics=metrics(scrub_damaged_replicas=2.0))]},
            Severity.WRONG, "damage", "node 1 has 2 damaged replicas",
        ),
        (
            {"nodes": [exam_of(node(1)), exam_of(node(2), metrics=metrics(
                clock_known=1.0, clock_out_of_bounds=1.0, clock_offset_ms=691_200_000.0
            ))]},
            Severity.WRONG, "clocks", "the clock of node 2 is 691200 s ahead of the cluster's time",
        ),
        (
            {"nodes": [exam_of(node(1), metrics=metrics(clock_known=0.0, clock_out_of_bounds=0.0))]},
            Severity.WRONG, "clocks", "node 1 does not know the cluster's time",
        ),
        (
            {"nodes": [exam_of(node(1)), exam_of(node(2), clock_ahead_ms=60_000)]},
            Severity.WARNING, "clocks", "the clock of node 2 is about 60 s ahead of that of node 1",
        ),
        (
            {"nodes": [exam_of(node(1), clock_ahead_ms=-60_000)]},
            Severity.WARNING, "clocks", "this machine's clock is about 60 s off",
        ),
        (
            {"nodes": [exam_of(node(1)), exam_of(node(2), version="2")]},
            Severity.WARNING, "versions", "1: nodes 1; 2: nodes 2",
        ),
        ({"groups": lag(101)}, Severity.WARNING, "groups", "group g has 101 records to read"),
        ({"groups": lag(None, is_known=False)}, Severity.WARNING, "groups", "the lag of 1 groups is not known: g"),
        ({"groups": None}, Severity.WARNING, "groups", "no node could say"),
    ],
)  # fmt: skip
def test_a_fault_is_told_first_with_what_to_do(changes, severity, check, said):
    found = findings(**changes)
    assert (found[0].severity, found[0].check) == (severity, check)
    assert said in found[0].found
    assert found[0].advice
    assert check not in {f.check for f in found if f.severity is Severity.OK}


def test_no_advice_is_to_wait_only_while_damaged_replicas_are_kept():
    def advice(**damage: float) -> dict[str, str]:
        leader = exam_of(node(1), metrics=metrics(partitions_under_min_isr=1.0, **damage))
        nodes = [leader, exam_of(node(2), not_ready="the replica of t-0 is catching up")]
        found = findings(nodes, partition={"isr": (1,)})
        return {f.found: f.advice for f in found if f.check in {"nodes", "replicas"}}

    ordinary, damaged = advice(), advice(scrub_damaged_replicas=1.0)
    assert ordinary.keys() == damaged.keys()
    assert len(damaged) == 3
    assert not any("see the damage" in advice for advice in ordinary.values())
    assert all("see the damage" in advice for advice in damaged.values())


def kafka(*listeners: float) -> list[Finding]:
    """The findings on nodes of which each has so many listeners for Kafka clients."""
    nodes = [
        exam_of(node(number), metrics=metrics(kafka_listeners=count))
        for number, count in enumerate(listeners, 1)
    ]
    return [finding for finding in findings(nodes) if finding.check == "kafka"]


def test_a_node_that_kafka_clients_do_not_reach_is_wrong_if_they_reach_others():
    assert kafka(0, 0) == []
    (fine,) = kafka(2, 2)
    assert (fine.severity, fine.found) == (
        Severity.OK,
        "all 2 nodes that answer listen for Kafka clients",
    )
    (found,) = kafka(1, 0, 2, 0)
    assert found.severity is Severity.WRONG
    assert found.found.startswith("nodes without kafka_listen, which others have: 2, 4. Kafka")
    assert found.advice == "set kafka_listen on them, and restart them"
    (found,) = kafka(1, 2)
    assert found.found.startswith("nodes without kafka_external_listen, which others have: 1. ")


def test_nodes_with_one_address_for_kafka_clients_are_wrong():
    counts = {1: 1.0, 2: 0.0, 3: 1.0}
    nodes = [
        exam_of(node(number), metrics=metrics(kafka_listeners=1.0, kafka_equal_addresses=count))
        for number, count in counts.items()
    ]
    (found,) = (finding for finding in findings(nodes) if finding.check == "kafka")
    assert found.severity is Severity.WRONG
    assert found.found.startswith("nodes with the address of another one for Kafka clients: 1, 3. ")
    assert found.advice.startswith("give each its own kafka_advertise")


DAY_S = 86_400
NOW_S = 1_900_000_000


def certificates(*days: float) -> list[Finding]:
    """The findings on nodes of which each has a certificate that ends in so many days."""
    nodes = []
    for number, left in enumerate(days, 1):
        told = replace(metrics(), certificates={"tls_cert_file": NOW_S + left * DAY_S})
        nodes.append(exam_of(node(number), asked_ms=NOW_S * 1000, metrics=told))
    return [finding for finding in findings(nodes) if finding.check == "certificates"]


def test_a_certificate_that_ends_soon_is_a_warning_and_one_that_has_ended_is_wrong():
    (fine,) = certificates(90, 14)
    assert (fine.severity, fine.found) == (Severity.OK, "the first expires in 14 days")
    (soon,) = certificates(90, 13)
    assert soon.severity is Severity.WARNING
    assert soon.found == "a certificate of tls_cert_file on node 2 expires in 13 days"
    ended, soon = certificates(5, -3)
    assert (ended.severity, soon.severity) == (Severity.WRONG, Severity.WARNING)
    assert ended.found == "a certificate of tls_cert_file on node 2 expired 3 days ago"
    assert "without a restart" in ended.advice


def test_the_doctor_warns_of_certificates_when_the_alert_does():
    root = Path(__file__).parents[4]
    rule = (root / "helm/milena/rules/milena.yaml").read_text().split("MilenaCertificateExpires")[1]
    assert re.search(r"- time\(\) < (\d+) \* 86400", rule)[1] == str(CERTIFICATE_DAYS_MIN)
    for page in ("command-line.md", "monitoring.md"):
        days = re.findall(r"expires\s+within (\d+) days", (root / "docs" / page).read_text())
        assert set(days) == {str(CERTIFICATE_DAYS_MIN)}


def test_without_tls_nothing_is_said_of_certificates():
    assert "certificates" not in {finding.check for finding in findings()}


def test_a_group_that_has_as_much_to_read_as_it_may_is_well():
    assert findings(groups=lag(100))[-1].severity is Severity.OK
    assert findings(groups=lag(None))[-1].severity is Severity.OK


def test_the_lag_of_a_named_producer_has_no_meaning():
    for at in (lag(101, 0, group="producer-a"), lag(None, 0, is_known=False, group="producer-a")):
        assert findings(groups=at)[-1].severity is Severity.OK
    consumers = findings(groups=lag(101, 1, group="producer-a"))
    assert Severity.WARNING in {finding.severity for finding in consumers}


def test_what_is_wrong_comes_before_warnings_and_these_before_what_is_well():
    found = findings(partition={"leader": None, "isr": (1,)}, controller_id=None)
    severities = [finding.severity for finding in found]
    assert severities == sorted(severities, key=list(Severity).index)
    assert [f.check for f in found[:3]] == ["quorum", "leaders", "replicas"]


@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("is_current", [True, False])
def test_a_missing_right_is_told_and_no_node_is_called_wrong(is_live, is_current):
    nodes = [
        NodeExam(node=node(number, is_live=is_live), failure="may not", is_denied=True)
        for number in (1, 2)
    ]
    found = [f for f in findings(nodes, is_current=is_current) if f.check == "nodes"]
    assert [f.severity for f in found] == [Severity.WARNING]
    assert "nodes answered (1, 2)" in found[0].found
    assert "lacks the right DESCRIBE on CLUSTER" in found[0].found
    assert "milena acls add" in found[0].advice
    assert "--advertise" not in found[0].advice


def test_without_a_majority_nothing_is_said_that_only_a_majority_knows():
    nodes = [exam_of(node(1)), NodeExam(node=node(2), failure="refused")]
    found = findings(nodes, is_current=False, partition={"leader": None, "isr": (1,)})
    assert [(f.severity, f.check) for f in found[:3]] == [
        (Severity.WRONG, "nodes"),
        (Severity.WRONG, "quorum"),
        (Severity.WARNING, "leaders"),
    ]
    assert found[0].advice == "start it, if it is down"
    assert "replicas" not in {f.check for f in found}


@pytest.fixture
async def api():
    fake = FakeApi()
    async with serving(fake.app()) as fake.url:
        fake.brokers = [{**fake.broker(1), "url": fake.url}]
        fake.metrics = "milena_ready 1.0\nmilena_disk_free_bytes 5e10\n"
        yield fake


async def run(api, capsys, *words):
    return await runner(api.url, capsys)("doctor", *words)


async def test_a_healthy_cluster_exits_0(api, capsys):
    api.add_topic("t", replicas=(1,))
    code, out, _ = await run(api, capsys)
    assert code == 0
    assert out.splitlines()[0] == "ok       nodes: all 1 answer at their URLs, and are ready"
    assert "ok       clocks: no two are more than 3 s apart" in out.splitlines()


async def test_the_end_of_a_certificate_is_read_from_the_metrics(api, capsys):
    api.metrics += (
        'milena_tls_certificate_expiry_timestamp_seconds{file="peer_tls_ca_file"} 1.5e9\n'
    )
    code, out, _ = await run(api, capsys)
    assert code == 1
    assert out.startswith(
        "wrong    certificates: a certificate of peer_tls_ca_file on node 1 expired"
    )


async def test_something_wrong_exits_1_and_says_what_to_do(api, capsys, unused_tcp_port):
    api.brokers.append({**api.broker(2), "url": f"http://127.0.0.1:{unused_tcp_port}"})
    code, out, _ = await run(api, capsys)
    assert code == 1
    wrong, advice = out.splitlines()[:2]
    assert wrong.startswith("wrong    nodes: node 2 (")
    assert advice.startswith("         -> ")
    code, out, _ = await run(api, capsys, "--json")
    assert (code, json.loads(out)[0]["severity"]) == (1, "wrong")


async def test_a_caller_without_the_right_is_told_which_one(api, capsys):
    api.is_metrics_denied = True
    code, out, _ = await run(api, capsys)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("warning  nodes: nodes answered (1), but this user lacks the right")
    assert "milena acls add" in lines[1]


async def test_a_node_that_is_not_ready_says_why(api, capsys):
    api.ready = (503, {"status": "unavailable", "reason": "the node is draining"})
    code, out, _ = await run(api, capsys)
    assert code == 0
    assert "is not ready: the node is draining" in out.splitlines()[0]
    assert "stop it, or start it again" in out.splitlines()[1]


async def test_nobody_there_exits_2(capsys, unused_tcp_port):
    url = f"http://127.0.0.1:{unused_tcp_port}"
    assert await asyncio.to_thread(cli.run, ["--url", url, "doctor"]) == 2
