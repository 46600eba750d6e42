"""The real helm against the API server, with hollow pods: needs no root."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helm.podlab import pods
from tests.helm.podlab.cluster import Cluster, new_store
from tests.helm.podlab.helm_cli import Helm, HelmError
from tests.helm.podlab.hollow import HollowPods
from tests.helm.podlab.manifest import Manifest
from tests.helm.podlab.store import ObjectStore

pytestmark = pytest.mark.integration

CHART = str(Path(__file__).parent / "podlab" / "charts" / "pebble")
SET = "r-pebble"
WAIT_S = 60


class Stage:
    """A cluster of hollow pods and the helm that works on it."""

    def __init__(self, cluster: Cluster, host: HollowPods, helm: Helm) -> None:
        self.cluster, self.host, self.helm = cluster, host, helm

    def names(self, kind: str) -> list[str]:
        return self.cluster.read(lambda store: [found.name for found in store.all(kind)])

    def one(self, kind: str, name: str) -> Manifest:
        return self.cluster.read(lambda store: store.get(kind, name))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    store = new_store()
    host = HollowPods(store)
    with Cluster(store, host) as cluster:
        yield Stage(cluster, host, Helm(cluster.url, tmp_path / "helm"))


def test_install_waits_for_every_pod_and_runs_the_hook(stage: Stage) -> None:
    out = stage.helm("install", "r", CHART, "--wait", "--timeout", "60s")
    assert "r: 3 pods" in out
    assert stage.one("StatefulSet", SET).number("status.readyReplicas") == 3
    assert stage.one("Job", f"{SET}-announce").number("status.succeeded") == 1
    assert stage.names("PersistentVolumeClaim") == [f"data-{SET}-{n}" for n in range(3)]
    assert '"deployed"' in stage.helm("list", "--output", "json")


def test_a_life_from_install_to_uninstall(stage: Stage) -> None:
    helm = stage.helm
    helm("install", "r", CHART, "--wait", "--timeout", "60s")
    token = stage.one("Secret", SET).text("data.token")
    assert len(base64.b64decode(token)) == 12

    helm("upgrade", "r", CHART, "--wait", "--timeout", "60s", "--set", "greeting=hi,replicas=5")
    assert stage.one("Secret", SET).text("data.token") == token, "lookup keeps the secret"
    assert stage.one("ConfigMap", SET).text("data.greeting") == "hi"
    assert [name for name in stage.host.stopped if name.startswith(SET + "-")][:3] == [
        *(f"{SET}-{n}" for n in (2, 1, 0)),
    ], "the highest ordinal is rolled first"
    assert stage.one("StatefulSet", SET).number("status.updatedReplicas") == 5

    assert "Succeeded" in helm("test", "r", "--logs")
    helm("rollback", "r", "1", "--wait", "--timeout", "60s")
    assert stage.one("ConfigMap", SET).text("data.greeting") == "hello"
    assert stage.one("StatefulSet", SET).number("status.replicas") == 3

    helm("uninstall", "r", "--wait", "--timeout", "60s")
    assert stage.names("StatefulSet") == []
    assert stage.names("PersistentVolumeClaim") == [f"data-{SET}-{n}" for n in range(5)]


def test_a_change_of_an_immutable_field_is_refused(stage: Stage) -> None:
    stage.helm("install", "r", CHART, "--wait", "--timeout", "60s")
    with pytest.raises(HelmError, match="podManagementPolicy differs"):
        stage.helm("upgrade", "r", CHART, "--set", "podManagementPolicy=OrderedReady")


def test_install_says_so_when_pods_do_not_become_ready(stage: Stage) -> None:
    def needs_three(pod: Manifest) -> bool:
        return len([name for name in stage.host.started if name.startswith(f"{SET}-")]) >= 3

    stage.host.may_be_ready = needs_three
    with pytest.raises(HelmError, match="context deadline exceeded"):
        stage.helm(
            *("install", "r", CHART, "--wait", "--timeout", "12s"),
            *("--set", "podManagementPolicy=OrderedReady"),
        )
    assert stage.names("Pod") == [f"{SET}-0"], "one pod waits for others that wait for it"


def test_a_budget_refuses_the_second_eviction(stage: Stage) -> None:
    stage.helm("install", "r", CHART, "--wait", "--timeout", "60s")
    away: list[str] = [f"{SET}-0"]
    stage.host.may_be_ready = lambda pod: pod.name not in away
    assert stage.cluster.evict(f"{SET}-0")
    stage.cluster.wait_until(
        lambda store: _is_back_unready(store, f"{SET}-0"), WAIT_S, "the evicted pod comes back"
    )
    assert not stage.cluster.evict(f"{SET}-1")
    away.clear()
    stage.cluster.wait_until(
        lambda store: pods.is_ready(store.get("Pod", f"{SET}-0")), WAIT_S, "the pod is ready again"
    )
    assert stage.cluster.evict(f"{SET}-1")


def _is_back_unready(store: ObjectStore, name: str) -> bool:
    pod = store.find("Pod", name)
    return pod is not None and pods.phase(pod) == "Running" and not pods.is_ready(pod)
