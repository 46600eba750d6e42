"""Who comes in, on real nodes: nobody without credentials after a default install, and the chart itself still works."""

import base64
from collections.abc import Iterator

import pytest

from tests.helm.charts import nested, render
from tests.helm.podlab.manifest import Document, Manifest
from tests.helm.podlab.release import (
    ADMIN_SECRET,
    CLIENT,
    NAME,
    SET,
    STRANGER,
    TOPIC,
    Release,
    milena_lab,
    overlaps,
    unclean,
)

pytestmark = [pytest.mark.integration, pytest.mark.long]

UPGRADE_S = 240
PROBES = ("/livez", "/startupz", "/readyz", "/openapi.json")
HOOK_SAID = "/var/lib/milena/hook"
AS_NOBODY = ("env", "-u", "MILENA_USER", "-u", "MILENA_PASSWORD_FILE", "milena")


def with_a_hook_that_is_heard(document: Document) -> Document:
    """The chart's own preStop command, whose words are kept on the claim: nothing else tells how it went."""
    if document["kind"] == "StatefulSet":
        container = Manifest(document).parts("spec.template.spec.containers")[0]
        command = container.texts("lifecycle.preStop.exec.command")
        heard = f"({command[-1]}) > {HOOK_SAID} 2>&1"
        container.part("lifecycle.preStop.exec").raw["command"] = [*command[:-1], heard]
    return document


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release of the defaults. The tests that use it are chapters of one story."""
    with milena_lab(tmp_path_factory.mktemp("closed")) as running:
        running.lab.cluster.mutate(with_a_hook_that_is_heard)
        running.helm("install")
        running.start_client()
        running.start_stranger()
        yield running


def password_of(release: Release) -> str:
    encoded = release.lab.get("Secret", ADMIN_SECRET).text("data.admin-password")
    return base64.b64decode(encoded).decode()


def status_without(release: Release, path: str, *, pod: str = "", method: str = "GET") -> int:
    """What a pod without credentials is answered."""
    return release.ask(path, pod=pod, client=STRANGER, method=method).status


def milena(release: Release, *words: str, pod: str = f"{SET}-0") -> str:
    """What the command prints in a node's pod; it must succeed."""
    done = release.lab.execute(pod, "milena", *words)
    assert done, f"{words}: {done.out}{done.err}"
    return done.out


def test_the_probes_pass_without_credentials(closed: Release) -> None:
    assert closed.lab.get("StatefulSet", SET).number("status.readyReplicas") == 3
    for pod in closed.node_pods(3):
        assert {status_without(closed, path, pod=pod) for path in PROBES} == {200}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metadata"),
        ("GET", "/metrics"),
        ("GET", f"/topics/{TOPIC}/partitions/0/offsets"),
        ("POST", "/drain"),
        ("POST", f"/topics/{TOPIC}"),
        ("PUT", "/users/mallory"),
    ],
)
def test_nobody_comes_in_without_credentials(closed: Release, method: str, path: str) -> None:
    for pod in closed.node_pods(3):
        assert status_without(closed, path, pod=pod, method=method) == 401
    assert closed.ask("/metadata", authorization="Basic YWRtaW46d3Jvbmc=").status == 401


def test_the_job_has_made_its_topics_as_the_first_user(closed: Release) -> None:
    assert [topic.text("name") for topic in closed.get("/metadata").parts("topics")] == [TOPIC]


def test_the_release_tests_itself(closed: Release) -> None:
    assert "Succeeded" in closed.lab.helm("test", NAME)


def test_commands_in_a_pod_come_as_the_first_user(closed: Release) -> None:
    assert "mode required\nyou are User:admin" in milena(closed, "access")
    refused = closed.lab.execute(f"{SET}-0", *AS_NOBODY, "status")
    assert refused.code == 1
    assert "give it token_file, or user and password_file" in refused.err


def test_nodes_drain_at_a_rolling_restart_and_the_password_stays(closed: Release) -> None:
    before, mark = password_of(closed), closed.mark()
    closed.helm("upgrade", "--set", "config.log_level=debug", timeout_s=UPGRADE_S)
    stops = closed.stops_since(mark)
    assert [stop.pod for stop in stops] == [f"{SET}-{ordinal}" for ordinal in (2, 1, 0)]
    assert not unclean(stops)
    assert not overlaps(closed.lab.journal.entries[mark:])
    for pod in closed.node_pods(3):
        assert closed.lab.execute(pod, "cat", HOOK_SAID).out == "drained\n"
    assert password_of(closed) == before
    assert "you are User:admin" in milena(closed, "access")
    assert status_without(closed, "/metadata") == 401


def test_a_drain_of_nobody_is_refused(closed: Release) -> None:
    """Or the test before could not fail."""
    refused = closed.lab.execute(f"{SET}-2", *AS_NOBODY, "drain")
    assert refused.code == 1
    assert "credentials" in refused.err


def test_the_password_is_neither_logged_nor_in_an_environment_nor_an_argument(
    closed: Release,
) -> None:
    password = password_of(closed)
    for pod in closed.node_pods(3):
        process = closed.lab.execute(pod, "sh", "-c", "cat /proc/1/environ /proc/1/cmdline").out
        assert "MILENA_ADMIN_PASSWORD_FILE=" in process
        assert password not in process
        log = closed.lab.log(pod)
        assert "draining" in log
        assert password not in log
    assert password not in closed.lab.log(f"{SET}-test")


def test_prometheus_scrapes_as_the_monitor_says(closed: Release) -> None:
    monitored = render(overrides=nested("metrics.serviceMonitor.enabled", True))
    asked = monitored.one("ServiceMonitor")["spec"]["endpoints"][0]["basicAuth"]
    assert asked["password"] == {"name": ADMIN_SECRET, "key": "admin-password"}
    encoded = monitored.one("Secret", asked["username"]["name"])["data"][asked["username"]["key"]]
    pair = f"{base64.b64decode(encoded).decode()}:{password_of(closed)}"
    basic = f"Basic {base64.b64encode(pair.encode()).decode()}"
    for pod in closed.node_pods(3):
        answer = closed.ask("/metrics", pod=pod, client=STRANGER, authorization=basic)
        assert answer.status == 200
        assert "milena_ready" in answer.body


def test_prometheus_scrapes_with_a_token_that_may_nothing_else(closed: Release) -> None:
    milena(closed, "users", "create", "prometheus", "--no-password")
    milena(closed, "acls", "add", "User:prometheus", "--allow", "DESCRIBE", "--cluster")
    token = milena(closed, "tokens", "create", "--user", "prometheus").strip()
    bearer = f"Bearer {token}"
    answers = {
        (method, path): closed.ask(
            path, pod=f"{SET}-1", client=STRANGER, method=method, authorization=bearer
        ).status
        for method, path in (("GET", "/metrics"), ("POST", "/drain"))
    }
    assert answers == {("GET", "/metrics"): 200, ("POST", "/drain"): 403}


def test_the_password_is_changed_without_a_restart(closed: Release) -> None:
    """The way that the page on Kubernetes describes."""
    mark = closed.mark()
    old = f"admin:{password_of(closed)}"
    new = "another one of some length"
    change = f"printf '{new}' | milena users change admin --password-file -"
    done = closed.lab.execute(f"{SET}-0", "sh", "-c", f"{change} --keep-previous")
    assert done, done.err
    assert "you are User:admin" in milena(closed, "access"), "by the old one, still"

    secret = closed.lab.get("Secret", ADMIN_SECRET).raw
    data = {"admin-password": base64.b64encode(new.encode()).decode()}
    closed.lab.cluster.read(lambda store: store.replace({**secret, "data": data}))
    see = ("cat", "/etc/milena-admin/admin-password")
    for pod in (*closed.node_pods(3), CLIENT):
        closed.lab.wait_for(
            lambda pod=pod: closed.lab.execute(pod, *see).out == new, 30, f"{pod} sees it"
        )
    done = closed.lab.execute(f"{SET}-1", "sh", "-c", change)
    assert done, done.err
    by_old = f"Basic {base64.b64encode(old.encode()).decode()}"
    assert closed.ask("/metadata", authorization=by_old).status == 401
    assert closed.ask("/metadata").status == 200
    assert not closed.stops_since(mark)
    closed.helm("upgrade", "--set", "config.log_level=debug", timeout_s=UPGRADE_S)
    assert password_of(closed) == new
    assert "Succeeded" in closed.lab.helm("test", NAME)


def test_whoever_is_locked_out_resets_the_password(closed: Release) -> None:
    change = "printf 'nobody remembers it' | milena users change admin --password-file -"
    done = closed.lab.execute(f"{SET}-0", "sh", "-c", change)
    assert done, done.err
    assert closed.ask("/metadata").status == 401
    mark = closed.mark()
    closed.helm("upgrade", "--set", "config.reset_admin=true", timeout_s=UPGRADE_S)
    assert not unclean(closed.stops_since(mark)), "SIGTERM drains where the hook could not"
    assert closed.ask("/metadata").status == 200


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release that asks nobody. The tests that use it are chapters of one story."""
    with milena_lab(tmp_path_factory.mktemp("open")) as running:
        running.helm("install", "--set", "auth.enabled=false")
        running.start_stranger()
        yield running


def test_an_open_install_asks_nobody(opened: Release) -> None:
    assert ADMIN_SECRET not in opened.lab.names("Secret")
    for pod in opened.node_pods(3):
        assert status_without(opened, "/metadata", pod=pod) == 200
        assert status_without(opened, "/metrics", pod=pod) == 200
    assert "Succeeded" in opened.lab.helm("test", NAME)
    assert "mode off" in milena(opened, "access")


def test_an_open_cluster_learns_to_ask_before_it_closes(opened: Release) -> None:
    mark = opened.mark()
    opened.helm("upgrade", "--set", "auth.enabled=true,auth.mode=optional", timeout_s=UPGRADE_S)
    assert not unclean(opened.stops_since(mark))
    assert "mode optional\nyou are User:admin" in milena(opened, "access")
    assert status_without(opened, "/metadata", pod=f"{SET}-1") == 200
    assert "would be refused" in opened.lab.log(f"{SET}-1")
    assert "Succeeded" in opened.lab.helm("test", NAME)
    milena(opened, "access", "set", "required")
    for pod in opened.node_pods(3):
        opened.lab.wait_for(
            lambda pod=pod: status_without(opened, "/metadata", pod=pod) == 401, 10, "closed"
        )
    assert "Succeeded" in opened.lab.helm("test", NAME)


def test_a_closed_cluster_is_opened_in_two_steps(opened: Release) -> None:
    milena(opened, "access", "set", "off")
    mark = opened.mark()
    opened.helm("upgrade", "--set", "auth.enabled=false", timeout_s=UPGRADE_S)
    assert not unclean(opened.stops_since(mark))
    assert status_without(opened, "/metadata") == 200
    assert "Succeeded" in opened.lab.helm("test", NAME)


def test_an_upgrade_with_the_defaults_closes_an_open_cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with milena_lab(tmp_path_factory.mktemp("closing")) as release:
        release.helm("install", "--set", "auth.enabled=false")
        release.start_stranger()
        assert status_without(release, "/metadata") == 200
        mark = release.mark()
        notes = release.helm("upgrade", "--set", "auth.enabled=true", timeout_s=UPGRADE_S).out
        assert "WARNING: this upgrade closes the cluster" in notes
        assert not unclean(release.stops_since(mark))
        assert len(release.stops_since(mark)) == 3
        for pod in release.node_pods(3):
            assert status_without(release, "/metadata", pod=pod) == 401
        assert "Succeeded" in release.lab.helm("test", NAME)
