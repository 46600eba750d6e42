"""What the chart refuses to do to a cluster that runs: helm looks the live objects up at an API server."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helm.charts import CHART, RELEASE
from tests.helm.podlab.cluster import Cluster, new_store
from tests.helm.podlab.helm_cli import Helm
from tests.helm.podlab.hollow import HollowPods
from tests.helm.podlab.manifest import Manifest
from tests.helm.podlab.store import NAMESPACE

pytestmark = [pytest.mark.integration, pytest.mark.smoke]

NODES = f"{RELEASE}-milena"


class Stage:
    """A cluster of pods without processes, and the helm that works on it."""

    def __init__(self, cluster: Cluster, helm: Helm) -> None:
        self.cluster, self.helm = cluster, helm

    def install(self, *settings: str) -> str:
        return self.helm("install", RELEASE, str(CHART), *self._set(settings))

    def upgrade(self, *settings: str) -> str:
        return self.helm("upgrade", RELEASE, str(CHART), *self._set(settings))

    def refusal(self, *settings: str, command: str = "upgrade") -> str:
        """The words in which it is refused."""
        result = self.helm.attempt(command, RELEASE, str(CHART), *self._set(settings))
        assert result.code, f"not refused: {settings}"
        return result.err

    def one(self, kind: str, name: str) -> Manifest:
        return self.cluster.read(lambda store: store.get(kind, name))

    @staticmethod
    def _set(settings: tuple[str, ...]) -> list[str]:
        return [word for setting in settings for word in ("--set", setting)]


@contextmanager
def open_stage(folder: Path) -> Iterator[Stage]:
    store = new_store()
    with Cluster(store, HollowPods(store)) as cluster:
        yield Stage(cluster, Helm(cluster.url, folder / "helm"))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with open_stage(tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A stage where nothing is ever installed."""
    with open_stage(tmp_path_factory.mktemp("empty")) as opened:
        yield opened


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A release that is never changed."""
    with open_stage(tmp_path_factory.mktemp("installed")) as opened:
        opened.install()
        yield opened


def test_the_secret_is_kept_on_upgrade(stage: Stage) -> None:
    stage.install()
    secret = stage.one("Secret", f"{NODES}-cluster-secret").text("data.cluster-secret")
    stage.upgrade("config.log_level=debug")
    assert stage.one("Secret", f"{NODES}-cluster-secret").text("data.cluster-secret") == secret


def test_the_secret_outlives_the_release_as_the_claims_do(stage: Stage) -> None:
    stage.install()
    secret = stage.one("Secret", f"{NODES}-cluster-secret").text("data.cluster-secret")
    stage.helm("uninstall", RELEASE, "--wait", "--timeout", "60s")
    stage.install()
    assert stage.one("Secret", f"{NODES}-cluster-secret").text("data.cluster-secret") == secret


def test_the_password_is_kept_over_upgrades_and_outlives_the_release(stage: Stage) -> None:
    def password() -> str:
        return stage.one("Secret", f"{NODES}-admin").text("data.admin-password")

    out = stage.install()
    first = password()
    assert len(base64.b64decode(first)) == 32
    assert base64.b64decode(first).decode() not in out, "the notes say where it is"
    stage.upgrade("config.log_level=debug")
    assert password() == first
    stage.upgrade("auth.enabled=false")
    assert password() == first, "the cluster keeps its users, too"
    stage.upgrade("auth.enabled=true")
    assert password() == first
    stage.helm("uninstall", RELEASE, "--wait", "--timeout", "60s")
    stage.install()
    assert password() == first


def test_another_admin_needs_a_word(stage: Stage) -> None:
    stage.install()
    refusal = stage.refusal("auth.adminUser=root")
    assert "auth.adminUser = root, but the first user of this cluster is admin" in refusal
    assert "Keep auth.adminUser: admin" in refusal
    refusal = stage.refusal("auth.existingSecret=other")
    assert f"auth.existingSecret names other, but the nodes run with {NODES}-admin" in refusal
    assert "--set config.reset_admin=true" in refusal
    both = ("auth.adminUser=root", "auth.existingSecret=other")
    stage.upgrade(*both, "config.reset_admin=true")
    stage.upgrade(*both, "config.reset_admin=false")


def test_an_upgrade_that_closes_an_open_cluster_says_so(stage: Stage) -> None:
    stage.install("auth.enabled=false")
    assert "closes the cluster" not in stage.upgrade("auth.enabled=false")
    gently = stage.helm(
        "upgrade",
        RELEASE,
        str(CHART),
        "--dry-run=server",
        "--set",
        "auth.enabled=true,auth.mode=optional",
    )
    assert "NOTE: this upgrade gives the cluster its first user" in gently
    notes = stage.upgrade("auth.enabled=true")
    assert "WARNING: this upgrade closes the cluster" in notes
    assert f"exec {NODES}-0 -- milena access set optional" in notes
    assert "closes the cluster" not in stage.upgrade("auth.enabled=true"), "said once"


def test_an_upgrade_does_not_open_a_closed_cluster_and_says_so(stage: Stage) -> None:
    stage.install()
    notes = stage.upgrade("auth.enabled=false")
    assert "WARNING: auth.enabled is false, but the cluster keeps its users" in notes
    assert "--user admin --password-file admin-password access set off" in notes


def test_growing_is_free_and_shrinking_needs_a_word(stage: Stage) -> None:
    stage.install()
    stage.upgrade("replicas=5")
    refusal = stage.refusal("replicas=3")
    assert "replicas = 3, but 5 nodes run: node(s) 4, 5 would stop for good" in refusal
    assert f"kubectl -n {NAMESPACE} exec {NODES}-0 -- milena rebalance --drain 4 --wait" in refusal
    assert "--set 'scaleDown.emptiedNodes={4,5}'" in refusal
    assert "node(s) 4 would stop" in stage.refusal("replicas=3", "scaleDown.emptiedNodes={5}")
    stage.upgrade("replicas=3", "scaleDown.emptiedNodes={4,5}")
    assert stage.one("StatefulSet", NODES).number("spec.replicas") == 3


def test_what_was_emptied_once_is_no_word_for_other_nodes(stage: Stage) -> None:
    stage.install("replicas=7")
    refusal = stage.refusal("replicas=5", "scaleDown.emptiedNodes={4,5}")
    assert "node(s) 6, 7 would stop" in refusal


def test_no_word_takes_the_nodes_below_the_voters(stage: Stage) -> None:
    stage.install("replicas=5")
    refusal = stage.refusal("replicas=2", "scaleDown.emptiedNodes={3,4,5}")
    assert "replicas = 2 is below voters = 3" in refusal


def test_the_voters_are_for_ever(stage: Stage) -> None:
    stage.install("replicas=5")
    refusal = stage.refusal("replicas=5", "voters=5")
    assert "voters = 5, but this cluster was made with 3" in refusal
    assert "Keep voters: 3 and grow with replicas" in refusal
    stage.helm("uninstall", RELEASE, "--wait", "--timeout", "60s")
    refusal = stage.refusal("replicas=5", "voters=5", command="install")
    assert "this cluster was made with 3" in refusal, "the claims remember"


def test_a_size_is_changed_claim_by_claim(stage: Stage) -> None:
    stage.install("persistence.size=1Gi")
    stage.helm(
        *("upgrade", RELEASE, str(CHART), "--dry-run=server"),
        *("--set", "persistence.size=1024Mi"),
    )
    refusal = stage.refusal("persistence.size=2Gi")
    assert "persistence.size = 2Gi, but the claims are of 1Gi" in refusal
    assert f"kubectl -n {NAMESPACE} patch pvc data-{NODES}-0" in refusal
    assert f"kubectl -n {NAMESPACE} delete statefulset {NODES} --cascade=orphan" in refusal


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("persistence.storageClass=fast", "the claims have storageClass \"\""),
        ("persistence.accessModes={ReadWriteOncePod}", 'accessModes ["ReadWriteOnce"]'),
        ("persistence.annotations.a=b", "annotations {}"),
        ("persistence.enabled=false", "the nodes run with claims"),
        ("tls.peer.enabled=true,tls.certManager.enabled=true", "the nodes run with false"),
        ("clusterSecret.existingSecret=other", "clusterSecret names other/cluster-secret"),
        ("clusterSecret.key=other", f"the nodes run with {NODES}-cluster-secret/cluster-secret"),
        ("fullnameOverride=other", f"Keep the name: --set fullnameOverride={NODES}"),
        ("nameOverride=other", f"Keep the name: --set fullnameOverride={NODES}"),
        (f"fullnameOverride={NODES},nameOverride=other", "nameOverride would change the selector"),
    ],
)  # fmt: skip
def test_what_would_break_a_running_cluster_is_refused(
    installed: Stage, setting: str, words: str
) -> None:
    before = installed.one("StatefulSet", NODES).number("metadata.generation")
    assert words in installed.refusal(setting)
    assert installed.one("StatefulSet", NODES).number("metadata.generation") == before


def test_an_upgrade_of_everything_else_passes(stage: Stage) -> None:
    stage.install()
    stage.upgrade(
        "image.tag=next",
        "config.log_level=debug",
        "resources.limits.memory=2Gi",
        "podLabels.a=b",
        "persistence.whenScaled=Delete",
        "externalAccess.enabled=true",
        "tls.api.enabled=true",
        "tls.certManager.enabled=true",
    )


def test_another_release_in_the_namespace_is_not_minded(stage: Stage) -> None:
    stage.install()
    stage.helm("install", "second", str(CHART), "--set", "replicas=5,voters=5")
    assert stage.one("StatefulSet", "second-milena").number("spec.replicas") == 5


@pytest.mark.parametrize(
    ("values", "words", "warnings"),
    [
        ("default", f"http://{NODES}.{NAMESPACE}.svc.cluster.local:8082", 0),
        ("default", "Requests without credentials are refused, except probes.", 0),
        ("default", f"get secret {NODES}-admin -o jsonpath='{{.data.admin-password}}'", 0),
        ("default", "curl --user admin http://localhost:8082/brokers", 0),
        ("default", "milena --url http://localhost:8082 --user admin --password-file", 0),
        ("monitoring", "NOTE: Prometheus uses admin, a user that may do everything.", 0),
        ("open", "The API needs no credentials", 0),
        ("optional", f"exec {NODES}-0 -- milena access set required", 0),
        ("tls-secrets", "--ca ca.crt --user root@example.org", 0),
        ("single", "voters is 1", 3),
        ("tls-secrets", f"https://{NODES}.{NAMESPACE}.svc.cluster.local:8082", 0),
        ("balancer", "traffic from the external services", 0),
        (
            "ingress",
            "of log.example.org, *.log.example.org; the console is at console/ below it.",
            0,
        ),
    ],
)
def test_notes_name_the_address_and_what_to_beware_of(
    empty: Stage, values: str, words: str, warnings: int
) -> None:
    file = str(Path(__file__).parent / "values" / f"{values}.yaml")
    out = empty.helm("install", RELEASE, str(CHART), "--dry-run=server", "--values", file)
    notes = out.rpartition("NOTES:")[2]
    assert words in notes
    assert notes.count("WARNING") == warnings
