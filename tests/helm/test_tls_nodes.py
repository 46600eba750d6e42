"""The chart with TLS everywhere, on real nodes: the certificates are those that it asks cert-manager for."""

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.helm.certificates import issue
from tests.helm.charts import CHART, helm
from tests.helm.podlab.manifest import Document
from tests.helm.podlab.release import HEADLESS, NAME, SET, Release, milena_lab, unclean
from tests.helm.podlab.store import NAMESPACE

pytestmark = [pytest.mark.integration, pytest.mark.long]

SETTINGS = (
    *("--set", "tls.api.enabled=true"),
    *("--set", "tls.peer.enabled=true"),
    *("--set", "tls.certManager.enabled=true"),
    *("--set", "tls.clients.existingSecret=person"),
    # A client that lives in the pod.
    *("--set-json", 'extraVolumes=[{"name":"person","secret":{"secretName":"person"}}]'),
    *("--set-json", 'extraVolumeMounts=[{"name":"person","mountPath":"/person"}]'),
)
PERSON = {"spec": {"commonName": "ann", "dnsNames": ["ann"], "usages": ["client auth"]}}
AS_ANN = (
    *("env", "-u", "MILENA_USER", "-u", "MILENA_PASSWORD_FILE", "milena"),
    *("--cert", "/person/tls.crt", "--key", "/person/tls.key"),
)
INSTALL_S = 240


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    directory = tmp_path_factory.mktemp("tls")
    with milena_lab(directory) as running:
        for secret in issued(directory):
            running.lab.create(secret)
        running.helm("install", *SETTINGS, timeout_s=INSTALL_S)
        yield running


def issued(directory: Path) -> Iterator[Document]:
    """The secrets that cert-manager makes of the chart's certificates."""
    done = helm("template", NAME, str(CHART), "--namespace", NAMESPACE, *SETTINGS)
    assert done.returncode == 0, done.stderr
    for document in yaml.safe_load_all(done.stdout):
        if document and document["kind"] == "Certificate" and "dnsNames" in document["spec"]:
            yield secret(directory, document["spec"]["secretName"], document)
    yield secret(directory, "person", PERSON)


def secret(directory: Path, name: str, certificate: Document) -> Document:
    folder = issue(directory / name / "secret", certificate)
    data = {file.name: base64.b64encode(file.read_bytes()).decode() for file in folder.iterdir()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "kubernetes.io/tls",
        "data": data,
    }


def test_nodes_find_each_other_and_are_ready_by_https(release: Release) -> None:
    assert release.lab.get("StatefulSet", SET).number("status.readyReplicas") == 3
    status = release.lab.execute(f"{SET}-1", "milena", "status")
    assert status, status.out + status.err


def test_records_are_written_and_read_back_by_https(release: Release) -> None:
    assert "Succeeded" in release.lab.helm("test", NAME)


def test_the_api_does_not_speak_plainly(release: Release) -> None:
    url = f"http://{SET}-0.{SET}-headless:8082"
    refused = release.lab.execute(f"{SET}-1", "milena", "--url", url, "status")
    assert not refused


def test_who_shows_a_certificate_is_the_user_that_it_names(release: Release) -> None:
    asked = release.lab.execute(f"{SET}-1", *AS_ANN, "access")
    assert "you are User:ann" in asked.out, asked.out + asked.err
    assert not release.lab.execute(f"{SET}-1", *AS_ANN, "topics", "create", "hers")
    allowed = ("acls", "add", "User:ann", "--allow", "CREATE,DESCRIBE", "--topic", "hers")
    assert release.lab.execute(f"{SET}-1", "milena", *allowed)
    made = release.lab.execute(f"{SET}-0", *AS_ANN, "topics", "create", "hers")
    assert made, made.out + made.err


def test_authorities_are_exchanged_without_a_restart(release: Release, tmp_path: Path) -> None:
    """The way of docs/security.md, of the API and of peers at once: both, new certificates, the new alone."""
    mark = release.mark()
    new = {made["metadata"]["name"]: made["data"] for made in issued(tmp_path)}
    del new["person"]
    old = {name: release.lab.get("Secret", name).raw["data"] for name in new}
    both = {name: joined(old[name]["ca.crt"], new[name]["ca.crt"]) for name in new}
    for name, data in old.items():
        change(release, name, {**data, "ca.crt": both[name]})
    for name, data in new.items():
        change(release, name, {**data, "ca.crt": both[name]})
    for name, data in new.items():
        change(release, name, data)
    for pod in release.node_pods(3):
        release.lab.wait_for(lambda pod=pod: is_in(release, pod), 60, f"{pod} is believed")
    assert not release.stops_since(mark)
    # One that begins anew has heard of the old ones never: the others let it in, and it lets them.
    uid = release.lab.get("Pod", f"{SET}-2").uid
    release.lab.delete_pod(f"{SET}-2", 60)
    release.wait_replaced(f"{SET}-2", uid, within_s=120)
    assert [stop.pod for stop in release.stops_since(mark)] == [f"{SET}-2"]
    assert "Succeeded" in release.lab.helm("test", NAME)


def joined(*encoded: str) -> str:
    return base64.b64encode(b"".join(base64.b64decode(part) for part in encoded)).decode()


def change(release: Release, name: str, data: Mapping[str, str]) -> None:
    """Another content of a secret, when all pods that have it see it and have had time to take it."""
    raw = release.lab.get("Secret", name).raw
    release.lab.cluster.read(lambda store: store.replace({**raw, "data": dict(data)}))
    folder = "/etc/milena-tls/" + ("peer" if "peer" in name else "api")
    see = ("sh", "-c", f"cd {folder} && cat ca.crt tls.crt")
    told = "".join(base64.b64decode(data[file]).decode() for file in ("ca.crt", "tls.crt"))
    for pod in release.node_pods(3):
        release.lab.wait_for(
            lambda pod=pod: release.lab.execute(pod, *see).out == told, 60, f"{pod} sees {name}"
        )
        release.lab.wait_for(lambda pod=pod: is_in(release, pod), 60, f"{pod} is believed")


def is_in(release: Release, pod: str) -> bool:
    """Whether every node is reached from a pod by the names and authorities that it has."""
    return all(
        bool(
            release.lab.execute(
                pod, "milena", "--url", f"https://{other}.{HEADLESS}:8082", "status"
            )
        )
        for other in release.node_pods(3)
    )


def test_nodes_drain_by_https_and_rejoin(release: Release) -> None:
    mark = release.mark()
    release.helm("upgrade", *SETTINGS, "--set", "config.log_level=debug", timeout_s=INSTALL_S)
    stops = release.stops_since(mark)
    assert [stop.pod for stop in stops] == [f"{SET}-{ordinal}" for ordinal in (2, 1, 0)]
    assert not unclean(stops)
    assert release.lab.execute(f"{SET}-0", "milena", "status")
