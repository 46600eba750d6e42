"""A real Prometheus scrapes three nodes under load: every panel has data, every rule works, every metric is told."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from loadtest.bench.servers.identities import Authority
from loadtest.cluster.local_cluster import LocalCluster, free_ports
from loadtest.cluster.node_process import NodeProcess
from tests.monitoring.monitored import (
    PAGE,
    PARTS,
    RULES,
    Panel,
    documented,
    filled_in,
    panels,
    rules,
)
from tests.support.clusters.live_cluster import (
    DEADLINE_S,
    call,
    create_topic,
    eventually,
    kafka_address,
    ok,
    read,
    running_cluster,
    write,
)

pytestmark = [pytest.mark.integration, pytest.mark.long]

ODD_NAMES = {
    "milena_group_lag_sum": "it is a sum, though of gauges",
    "milena_clock_offset_ms": "its bound, clock_skew_ms_max, is in milliseconds, too",
}
"""Metrics whose names Prometheus' own tool finds odd, with the reason."""
VARIABLES = {
    "namespace": ".*",
    "job": "milena-test",
    "topic": "orders|visits",
    "group": "billing",
    "__rate_interval": "10s",
}
PAUSE_S = 0.1


@dataclass(frozen=True)
class Watched:
    """Three nodes and the Prometheus that scrapes them."""

    cluster: LocalCluster
    port: int

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(query)}"
        with urlopen(url, timeout=20) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        return self.ask("query", query=expression)["result"]

    def rules(self) -> dict[str, dict[str, Any]]:
        return {
            rule["name"]: rule for group in self.ask("rules")["groups"] for rule in group["rules"]
        }


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[int]:
    (port,) = free_ports(1)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": VARIABLES["job"], "static_configs": [{"targets": targets}]}
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    process = NodeProcess(
        (
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ),
        environment=os.environ,
        log_path=folder / "prometheus.log",
    )
    process.start()
    try:
        yield port
    finally:
        process.kill()


@contextmanager
def load(cluster: LocalCluster) -> Iterator[None]:
    """Writes, reads and commits until the block is left."""
    stop = threading.Event()
    failures: list[Exception] = []
    one, two, _ = cluster.nodes

    def work() -> None:
        try:
            for number in range(10_000):
                if stop.wait(PAUSE_S):
                    return
                for topic in ("orders", "visits"):
                    ok(write(one, topic, number, partition=0))
                    ok(read(two, topic, offset=max(0, number - 1)))
                if number % 5 == 0:
                    offsets = [{"topic": "orders", "partition": 0, "offset": number}]
                    ok(call(two, "POST /groups/billing/offsets", {"offsets": offsets}))
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
        assert not failures, failures
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    authority = Authority(folder)
    shown = authority.issue("nodes", "nodes")
    with running_cluster(
        folder / "nodes",
        peer_tls_cert_file=shown.certificate,
        peer_tls_key_file=shown.key,
        peer_tls_ca_file=authority.file,
        kafka_listen="127.0.0.1:0",
    ) as cluster:
        servers = ",".join(map(kafka_address, cluster.nodes))
        AdminClient({"bootstrap.servers": servers}).list_topics(timeout=DEADLINE_S)
        for topic in ("orders", "visits"):
            create_topic(cluster.node(1), topic)
        targets = [f"127.0.0.1:{node.api_port}" for node in cluster.nodes]
        with prometheus(folder, targets) as port, load(cluster):
            found = Watched(cluster, port)
            # A lag has been looked at, and rates have two samples.
            eventually(lambda: found.query("milena:group_lag_seconds:max"))
            eventually(
                lambda: found.query(f"rate(milena_group_lag_sum[{VARIABLES['__rate_interval']}])")
            )
            yield found


@pytest.mark.parametrize("panel", [*panels()], ids=str)
def test_every_query_of_a_panel_has_data(watched: Watched, panel: Panel) -> None:
    def has_data(expression: str) -> bool:
        return any(row["value"][1] != "NaN" for row in watched.query(expression))

    for expression in panel.expressions:
        filled = filled_in(expression, VARIABLES)
        assert eventually(lambda filled=filled: has_data(filled), deadline_s=15), filled


def test_the_page_has_every_metric_that_nodes_export_and_no_other(watched: Watched) -> None:
    told = documented()
    types: dict[str, str] = {}
    labels: dict[str, set[str]] = {}
    for node in watched.cluster.nodes:
        text = call(node, "GET /metrics").body.decode()
        types |= dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
    assert types == {name: row.type for name, row in told.items()}
    ends = {name: PARTS.get(kind, ("",)) for name, kind in types.items()}
    for name, row in told.items():
        # Peers use TLS here, and a Kafka client has asked, so that every metric has a sample.
        found = set().union(*(labels[name + end] for end in ends[name])) - {"le"}
        assert found == row.labels, name


def test_metrics_are_named_as_prometheus_wants(watched: Watched) -> None:
    complaints = set()
    for node in watched.cluster.nodes:
        done = subprocess.run(
            ["promtool", "check", "metrics"],
            input=call(node, "GET /metrics").body,
            capture_output=True,
            check=False,
        )
        complaints |= {
            line.split()[0] for line in (done.stdout + done.stderr).decode().splitlines()
        }
    assert complaints == set(ODD_NAMES)


def test_the_brief_form_lacks_the_label_partition_alone(watched: Watched) -> None:
    text = call(watched.cluster.node(1), "GET /metrics", partitions="false").body.decode()
    brief = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    assert brief == {name for name, row in documented().items() if "partition" not in row.labels}


def test_every_rule_works_and_no_alert_fires_on_a_healthy_cluster(watched: Watched) -> None:
    def evaluated() -> dict[str, dict[str, Any]]:
        found = watched.rules()
        assert all(rule["health"] != "unknown" for rule in found.values()), found
        return found

    found = eventually(evaluated)
    assert set(found) == {rule.get("alert") or rule["record"] for rule in rules()}
    assert not [rule for rule in found.values() if rule["health"] != "ok"]
    assert not {name for name, rule in found.items() if rule.get("state", "inactive") != "inactive"}


def test_the_age_of_the_first_unread_record_is_counted_from_when_it_was_written(
    watched: Watched,
) -> None:
    """The first record was written before this group was known, so its own date counts."""
    offsets = [{"topic": "visits", "partition": 0, "offset": 0}]
    ok(call(watched.cluster.node(1), "POST /groups/resting/offsets", {"offsets": offsets}))
    (row,) = eventually(lambda: watched.query('milena_group_lag_seconds{group="resting"}'))
    first = ok(read(watched.cluster.node(1), "visits", offset=0, max_bytes=1))[0]
    asked_s, age_s = map(float, row["value"])
    # The value was computed up to ten seconds before Prometheus was asked.
    assert 0 < age_s <= asked_s - first["timestamp"] / 1000


def test_the_doctor_sees_the_end_of_the_certificates(watched: Watched) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "milena", "--url", watched.cluster.node(1).url, "doctor"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(
        r"^ok +certificates: the first expires in \d+ days$", done.stdout, re.MULTILINE
    )
    files = {
        row["metric"]["file"]
        for row in watched.query("milena_tls_certificate_expiry_timestamp_seconds")
    }
    assert files == {"peer_tls_cert_file", "peer_tls_ca_file"}


def test_the_configuration_of_the_page_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(yaml.safe_load(block)), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_alert_is_on_its_way_once_a_node_is_gone(watched: Watched) -> None:
    """The last test of this file: it kills a node that nothing writes to."""
    gone = watched.cluster.node(3)
    gone.process.kill()

    def is_pending() -> bool:
        found = watched.rules()["MilenaNodeDown"]
        return found["state"] == "pending" and [
            alert["labels"]["instance"] for alert in found["alerts"]
        ] == [f"127.0.0.1:{gone.api_port}"]

    eventually(is_pending)
