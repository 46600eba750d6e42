"""The load test itself: green on a real cluster whose leader dies, red where something is planted."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

import loadtest
from loadtest.cluster.local_cluster import free_ports
from loadtest.judging.judge import judge
from loadtest.judging.ledger import Settled, read_all
from loadtest.judging.plants import Plant, Planter
from loadtest.judging.verdict import Anomaly
from loadtest.records.receipts import Fate
from tests.support.clusters.live_cluster import create_topic, eventually, running_cluster

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "loadtest"]
TIMEOUT_S = 240
SHORTLY = "5s"
"""A load that nothing comes of proves nothing, and a machine may stall for a second or two of it."""
LOCUSTFILE = Path(loadtest.__file__).with_name("locustfile.py")
FOUND_AS = {
    Plant.LOSS: Anomaly.LOST_WRITE,
    Plant.DUPLICATE: Anomaly.DUPLICATE,
    Plant.CORRUPT: Anomaly.CORRUPT_RECORD,
    Plant.REORDER: Anomaly.NONMONOTONIC_SEND,
}


def load(directory, *words):
    return subprocess.run(
        [*COMMAND, "--out", str(directory), *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def children_of(directory: Path) -> list[str]:
    """Processes that still name this run's folder in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(directory) in line:
                found.append(line)
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("loaded")) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def urls(cluster):
    return [word for node in cluster.nodes for word in ("--url", node.url)]


def test_a_leader_dies_and_every_acknowledged_record_is_there(tmp_path):
    done = load(tmp_path, "--run-time", "12s", "--users", "14", "--down", "2s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a leader, with -9" in done.stderr
    assert "is back and ready" in done.stderr
    assert "records are there, once, in order, as they were written." in done.stdout
    told = json.loads((tmp_path / "summary.json").read_text())
    assert told["is_good"]
    # Thousands, where nothing else runs.
    assert told["verdict"]["acknowledged"] > 100
    assert told["verdict"]["polled"] > 10
    assert [at["text"].split(" ")[0] for at in told["incidents"]] == ["killed", "node"]
    assert told["gap_after_kill_s"] < 30
    (cores,) = told["cores_of_users"]
    assert 0 < cores < 2
    assert {e["name"] for e in told["endpoints"]} == {
        "produce one json",
        "produce one binary",
        "produce batch json",
        "produce batch binary",
        "fetch long poll",
        "fetch pages",
    }
    for name in ("summary.md", "overview.png", "gaps.png", "locust.html", "locust_stats.csv"):
        assert (tmp_path / name).stat().st_size > 500, name
    eventually(lambda: children_of(tmp_path) == [])


def test_a_planted_loss_makes_the_run_fail_and_the_ledgers_can_be_judged_again(
    tmp_path, cluster, urls
):
    done = load(
        tmp_path,
        *urls,
        "--topic",
        "planted",
        "--run-time",
        SHORTLY,
        "--users",
        "8",
        "--plant",
        "loss",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAULT lost-write: 1, as " in done.stdout
    assert "FAILED: " in done.stdout
    assert "planted" in done.stdout
    told = json.loads((tmp_path / "summary.json").read_text())
    assert told["verdict"]["found"]["lost-write"] == 1
    assert not told["is_good"]

    ledgers, nodes = tmp_path / "ledger" / "run-1", [node.url for node in cluster.nodes]
    for plant in (None, *Plant):
        planter = Planter(plant)
        verdict = asyncio.run(judge(ledgers, nodes, planter=planter, is_quiet=True))
        assert not planter.is_missing
        assert verdict.is_conclusive
        if plant is None:
            assert verdict.faults == 0, verdict.found
        else:
            assert verdict.found[FOUND_AS[plant]] == 1, plant


def test_a_topic_that_has_records_already_is_judged_from_its_end_on(tmp_path, urls):
    for name in ("first", "second"):
        done = load(
            tmp_path / name, *urls, "--topic", "again", "--run-time", SHORTLY, "--users", "6",
            "--keys", "0", "--record-bytes", "300", "--acks", "1",
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def test_locust_s_options_choose_the_users(tmp_path, urls):
    done = load(tmp_path, *urls, "--run-time", SHORTLY, "--users", "2", "--", "JsonBatch")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "summary.json").read_text())
    assert [e["name"] for e in told["endpoints"]] == ["produce batch json"]


def test_several_processes_have_a_ledger_each(tmp_path, urls):
    # Locust's own port is that of anybody else's locust on this machine.
    port = str(free_ports(1)[0])
    where = ("--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port)
    done = load(
        tmp_path, *urls, "--run-time", SHORTLY, "--users", "8", "--", "--processes", "2", *where
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "ledger" / "run-1").glob("*.ledger"))) == 3
    eventually(lambda: children_of(tmp_path) == [])


def test_ctrl_c_ends_the_load_early_and_it_is_judged(tmp_path, urls):
    with started(tmp_path, *urls, "--run-time", "10m", "--users", "4") as process:
        ledgers = tmp_path / "ledger" / "run-1"
        eventually(lambda: acknowledged_in(ledgers) > 20)
        process.send_signal(signal.SIGINT)
        printed, complaints = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, printed + complaints
    assert "records are there, once" in printed
    assert (tmp_path / "locust.html").exists()
    eventually(lambda: children_of(tmp_path) == [])


def test_tests_of_the_web_page_are_judged_when_they_stop(tmp_path, urls):
    (port,) = free_ports(1)
    page = f"http://127.0.0.1:{port}"
    with started(tmp_path, *urls, "--web", "--web-port", str(port)) as process:
        eventually(lambda: b"Locust" in get(page))
        for number in (1, 2):
            get(f"{page}/swarm", b"user_count=4&spawn_rate=4&batch_records=7")
            eventually(lambda n=number: acknowledged_in(tmp_path / "ledger" / f"run-{n}") > 20)
            get(f"{page}/stop", b"")
            report = tmp_path / f"run-{number}" / "summary.json"
            told = eventually(lambda r=report: whole_json(r))
            assert told["is_good"], told["headline"]
        process.send_signal(signal.SIGINT)
        printed, complaints = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, printed + complaints
    assert printed.count("records are there, once") == 2
    eventually(lambda: children_of(tmp_path) == [])


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path):
    (port,) = free_ports(1)
    done = load(tmp_path, "--url", f"http://127.0.0.1:{port}", "--run-time", "2s")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("loadtest: cannot reach")


def test_locust_alone_leaves_ledgers(tmp_path, cluster):
    create_topic(cluster.nodes[0], "alone", partitions=2)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "-u", "4"),
            *("-t", SHORTLY, "--host", cluster.nodes[0].url, "--topic", "alone"),
            *("--ledger", str(tmp_path), "--stop-timeout", "10"),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ledgers = str(tmp_path / "run-1")
    judged = load(tmp_path / "out", "--judge", ledgers, "--url", cluster.nodes[1].url)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "records are there, once" in judged.stdout
    unsure = load(tmp_path / "out", "--judge", ledgers)
    assert unsure.returncode == 2
    assert "--judge needs --url" in unsure.stderr


SLOW_START = """
import time
import gevent
from locust import events

@events.init.add_listener
def on_init(**_):
    # The loop wakes up, and then gets no turn for longer than the run is to take.
    gevent.sleep(0.01)
    end_s = time.monotonic() + 4
    while time.monotonic() < end_s:
        pass

from loadtest.locustfile import *
"""


def test_a_start_that_takes_long_takes_nothing_off_the_run(tmp_path, cluster):
    create_topic(cluster.nodes[0], "slow-start")
    (tmp_path / "slow.py").write_text(SLOW_START)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "locust", "-f", str(tmp_path / "slow.py"), "--headless"),
            *("-u", "1", "-t", "4s", "--host", cluster.nodes[0].url, "--topic", "slow-start"),
            *("--ledger", str(tmp_path), "--stop-timeout", "10", "JsonBatch"),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert acknowledged_in(tmp_path / "run-1") > 0


def test_a_topic_that_is_not_there_is_told(tmp_path, cluster):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "-u", "1"),
            *("-t", "60s", "--host", cluster.nodes[0].url, "--topic", "nope"),
            *("--ledger", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 2
    assert "the test cannot start" in done.stderr
    assert "topic 'nope' does not exist" in done.stderr


@contextmanager
def started(directory, *words):
    """The load test as a process that ends with the block."""
    process = subprocess.Popen(
        [*COMMAND, "--out", str(directory), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def acknowledged_in(ledgers: Path) -> int:
    events = read_all(ledgers) if ledgers.exists() and any(ledgers.glob("*.ledger")) else ()
    return sum(e.count for e in events if isinstance(e, Settled) and e.fate is Fate.ACKNOWLEDGED)


def whole_json(path: Path) -> object:
    """What the file holds, once it is written to its end."""
    text = path.read_text()
    assert text.rstrip().endswith("}"), text[-100:]
    return json.loads(text)


def get(url: str, form: bytes | None = None) -> bytes:
    with urllib.request.urlopen(url, form, timeout=20) as answer:
        return answer.read()
