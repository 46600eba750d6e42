"""The pod runner itself, with real processes and the real helm: needs root, iproute2, iptables and util-linux."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helm.podlab import pods
from tests.helm.podlab.fabric import NAMESPACES, remove_leftovers
from tests.helm.podlab.helm_cli import HelmError
from tests.helm.podlab.images import PROJECT, Image, host_environment
from tests.helm.podlab.journal import Happening
from tests.helm.podlab.lab import Lab, client_pod, running_lab

pytestmark = [pytest.mark.integration, pytest.mark.long]

CHART = str(Path(__file__).parent / "podlab" / "charts" / "pebble")
SET = "r-pebble"
HEADLESS = f"{SET}-headless"
IMAGES = {"pebble": Image(entrypoint=("python3", "/app/pebble.py"), environment=host_environment())}
WAIT = ("--wait", "--timeout", "60s")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Three pods, one client that the policy lets in and one that it does not."""
    with running_lab(IMAGES, tmp_path_factory.mktemp("lab")) as running:
        running.helm("install", "r", CHART, *WAIT)
        running.create(client_pod("guest", "pebble:1", {"pebble-client": "true"}, ["sleep", "600"]))
        running.create(client_pod("stranger", "pebble:1", {}, ["sleep", "600"]))
        running.wait_ready("guest", "stranger", within_s=20)
        yield running


def ask(lab: Lab, client: str, url: str) -> str:
    """What a client gets, or how it fails."""
    program = (
        "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=2).read().decode())"
    )
    done = lab.execute(client, "python3", "-c", program, url)
    return done.out.strip() or done.err.strip().splitlines()[-1]


def about(lab: Lab, url: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(ask(lab, "guest", url))
    return found


def test_a_pod_is_what_its_spec_says(lab: Lab) -> None:
    told = about(lab, f"http://{SET}-1.{HEADLESS}:8080/")
    pod = lab.get("Pod", f"{SET}-1")
    assert told == {
        "name": f"{SET}-1",
        "host": f"{SET}-1",
        "boots": 1,
        "pid": 1,
        "uid": 10001,
        "groups": [10001],
        "ip": pods.address(pod),
        "token": told["token"],
        "greeting": "hello",
        "memory": str(128 << 20),
        "prepared": "prepared",
        "root": "Read-only file system",
    }
    assert len(str(told["token"])) == 12


def test_names_lead_to_pods_and_the_service_to_any_of_them(lab: Lab) -> None:
    full = f"http://{SET}-2.{HEADLESS}.default.svc.cluster.local:8080/"
    assert about(lab, full)["name"] == f"{SET}-2"
    reached = {about(lab, f"http://{SET}/")["name"] for _ in range(15)}
    assert reached == {f"{SET}-{n}" for n in range(3)}
    assert len(json.loads(ask(lab, "guest", f"http://{SET}/peers"))) == 3


def test_the_policy_keeps_strangers_out(lab: Lab) -> None:
    assert "timed out" in ask(lab, "stranger", f"http://{SET}-0.{HEADLESS}:8080/")


def test_the_test_hook_runs(lab: Lab) -> None:
    assert "Succeeded" in lab.helm("test", "r")
    assert f"{SET}-0" in lab.log(f"{SET}-reach")


def test_a_changed_config_map_reaches_running_pods(lab: Lab) -> None:
    greeting = ("cat", "/app/greeting")
    assert lab.execute(f"{SET}-0", *greeting).out == "hello"
    changed = lab.get("ConfigMap", SET)
    changed.part("data").raw["greeting"] = "hi there"
    lab.cluster.read(lambda store: store.replace(changed.raw))
    lab.wait_for(lambda: lab.execute(f"{SET}-0", *greeting).out == "hi there", 10, "the new text")
    assert (
        lab.get("Pod", f"{SET}-0").parts("status.containerStatuses")[0].number("restartCount") == 0
    )


def test_a_pod_that_hangs_is_restarted_in_place(lab: Lab) -> None:
    ask(lab, "guest", f"http://{SET}-0.{HEADLESS}:8080/hang")
    lab.wait_until(
        lambda store: (
            store.get("Pod", f"{SET}-0").parts("status.containerStatuses")[0].number("restartCount")
            == 1
        ),
        20,
        "a failed liveness probe restarts the container",
    )
    lab.wait_ready(f"{SET}-0", within_s=20)
    assert about(lab, f"http://{SET}-0.{HEADLESS}:8080/")["boots"] == 2
    assert lab.journal.of(Happening.PROBE_FAILED, pod=f"{SET}-0")


def test_a_killed_pod_comes_back_with_its_claim(lab: Lab) -> None:
    before = lab.get("Pod", f"{SET}-1").uid
    lab.delete_pod(f"{SET}-1", 0)
    lab.wait_until(
        lambda store: (pod := store.find("Pod", f"{SET}-1")) is not None and pod.uid != before,
        20,
        "another pod of that name",
    )
    lab.wait_ready(f"{SET}-1", within_s=20)
    assert about(lab, f"http://{SET}-1.{HEADLESS}:8080/")["boots"] == 2


def test_upgrade_rolls_from_the_last_and_scales(lab: Lab) -> None:
    begun = len(lab.journal.entries)
    lab.helm("upgrade", "r", CHART, *WAIT, "--set", "greeting=hi,replicas=4")
    stopped = [e for e in lab.journal.entries[begun:] if e.what is Happening.STOPPED]
    assert [entry.pod for entry in stopped] == [f"{SET}-{n}" for n in (2, 1, 0)]
    assert all(e.stop and not e.stop.was_killed and e.stop.exit_code == 0 for e in stopped)
    assert about(lab, f"http://{SET}-3.{HEADLESS}:8080/")["greeting"] == "hi"


def test_a_hook_longer_than_the_grace_period_is_seen(lab: Lab) -> None:
    lab.helm(
        "upgrade", "r", CHART, *WAIT, "--set", "drainSeconds=30,gracePeriodSeconds=1,replicas=1"
    )
    lab.helm("upgrade", "r", CHART, *WAIT, "--set", "replicas=1")
    slow = lab.journal.of(Happening.STOPPED, pod=f"{SET}-0")[-1].stop
    assert slow is not None
    assert "no answer within" in slow.pre_stop_error


def test_a_missing_key_is_said_in_the_pods_status(lab: Lab) -> None:
    broken = client_pod("broken", "pebble:1", {}, ["true"])
    container = {
        "name": "broken",
        "image": "pebble:1",
        "command": ["true"],
        "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": SET, "key": "gone"}}}],
    }
    broken["spec"] = {"containers": [container]}
    lab.create(broken)
    lab.wait_until(
        lambda store: "has no key gone" in store.get("Pod", "broken").text("status.message"),
        10,
        "the reason is given",
    )
    lab.delete_pod("broken", 0)


def test_who_does_not_hear_term_is_killed(lab: Lab) -> None:
    """Process 1 without a handler: the kernel does not even deliver the signal."""
    lab.create(client_pod("deaf", "pebble:1", {}, ["sleep", "600"]))
    lab.wait_ready("deaf", within_s=20)
    lab.delete_pod("deaf", 1)
    lab.wait_until(lambda store: store.find("Pod", "deaf") is None, 10, "it goes")
    stop = lab.journal.of(Happening.STOPPED, pod="deaf")[-1].stop
    assert stop is not None
    assert (stop.was_killed, stop.exit_code) == (True, 128 + 9)


def test_an_unknown_image_is_said_in_the_pods_status(lab: Lab) -> None:
    lab.create(client_pod("lost", "nowhere:1", {}, ["true"]))
    lab.wait_until(
        lambda store: store.get("Pod", "lost").text("status.message") == "ErrImagePull: nowhere:1",
        10,
        "the reason is given",
    )
    lab.delete_pod("lost", 0)


def test_uninstall_keeps_the_claims_alone(lab: Lab) -> None:
    lab.helm("uninstall", "r", "--wait", "--timeout", "30s")
    assert lab.names("StatefulSet") == []
    lab.wait_until(
        lambda store: not [pod for pod in store.all("Pod") if pod.labels.get("app") == SET],
        20,
        "the set's pods go; those of hooks stay, as with helm everywhere",
    )
    assert f"data-{SET}-0" in lab.names("PersistentVolumeClaim")


def test_pods_that_need_each_other_deadlock_in_order(tmp_path: Path) -> None:
    with running_lab(IMAGES, tmp_path) as lab:
        needy = ("--set", "peersNeeded=3")
        with pytest.raises(HelmError, match="deadline"):
            lab.helm(
                *("install", "r", CHART, "--wait", "--timeout", "5s", *needy),
                *("--set", "podManagementPolicy=OrderedReady"),
            )
        assert [n for n in lab.names("Pod") if n.startswith(f"{SET}-")] == [f"{SET}-0"]
        lab.helm("uninstall", "r")
        lab.helm("install", "r", CHART, *WAIT, *needy)
        lab.helm("uninstall", "r")
        with pytest.raises(HelmError, match="deadline"):
            lab.helm(
                *("install", "r", CHART, "--wait", "--timeout", "5s", *needy),
                *("--set", "publishNotReady=false"),
            )


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    with running_lab(IMAGES, tmp_path) as lab:
        lab.create(client_pod("sleeper", "pebble:1", {}, ["sleep", "600"]))
        lab.wait_ready("sleeper", within_s=20)
        during = namespaces(os.getpid())
        assert processes_below(tmp_path)
    assert namespaces(os.getpid()) < during
    assert not processes_below(tmp_path)
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()


def test_a_killed_lab_takes_its_pods_with_it(tmp_path: Path) -> None:
    """Its namespaces are removed by the next one."""
    lab = subprocess.Popen(
        [sys.executable, "-c", ABANDONED, str(tmp_path)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert lab.stdout is not None
    with lab.stdout:
        assert lab.stdout.readline() == "ready\n"
        assert len(processes_below(tmp_path)) > 1
        lab.kill()
        lab.wait()
    deadline = time.monotonic() + 10
    while processes_below(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_below(tmp_path)
    assert namespaces(lab.pid)
    remove_leftovers()
    assert not namespaces(lab.pid)


ABANDONED = """
import pathlib, sys, time
from tests.helm.podlab.images import PROJECT, Image, host_environment
from tests.helm.podlab.lab import client_pod, running_lab

images = {"pebble": Image(environment=host_environment())}
with running_lab(images, pathlib.Path(sys.argv[1])) as lab:
    lab.create(client_pod("sleeper", "pebble:1", {}, ["sh", "-c", "sleep 600 & sleep 600"]))
    lab.wait_ready("sleeper", within_s=20)
    print("ready", flush=True)
    time.sleep(600)
"""


def namespaces(owner: int) -> set[str]:
    """Names of a process's network namespaces."""
    return {path.name for path in NAMESPACES.iterdir() if path.name.startswith(f"podlab{owner}-")}


def processes_below(directory: Path) -> list[str]:
    """Command lines that name the lab's directory: the shims."""
    files = [path / "cmdline" for path in Path("/proc").iterdir() if path.name.isdigit()]
    lines = [file.read_bytes().decode(errors="replace") for file in files if file.exists()]
    return [line for line in lines if str(directory) in line]
