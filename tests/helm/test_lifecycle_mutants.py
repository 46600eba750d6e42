"""Known ways to break a chart's life cycle, planted into the real chart: each must be seen.

A life-cycle test that passes with these proves nothing.
"""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helm.podlab import pods
from tests.helm.podlab.manifest import Document, Json, Manifest
from tests.helm.podlab.release import SET, Release, milena_lab, unclean

pytestmark = [pytest.mark.integration, pytest.mark.long]

PATIENCE_S = 20
"""A sound chart is ready in half of that on a busy machine (``test_lifecycle`` waits for it to be)."""


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Release]:
    with milena_lab(tmp_path) as running:
        yield running


def altered(document: Document, path: str, value: Json) -> Document:
    """The document with one field changed, which must be there."""
    assert Manifest(document).has(path), f"the chart sets {path}"
    changed = copy.deepcopy(document)
    *way, last = path.split(".")
    Manifest(changed).part(".".join(way)).raw[last] = value
    return changed


def with_command(document: Document, command: str, grace_s: int) -> Document:
    """A StatefulSet with another preStop hook."""
    changed = altered(document, "spec.template.spec.terminationGracePeriodSeconds", grace_s)
    container = Manifest(changed).parts("spec.template.spec.containers")[0]
    assert container.has("lifecycle.preStop.exec"), "the chart drains by a command"
    container.part("lifecycle.preStop").raw["exec"] = {"command": ["/bin/sh", "-c", command]}
    return changed


def test_nodes_started_in_order_wait_for_ever(release: Release) -> None:
    release.lab.cluster.mutate(
        lambda document: (
            altered(document, "spec.podManagementPolicy", "OrderedReady")
            if document["kind"] == "StatefulSet"
            else document
        )
    )
    result = release.attempt("install", timeout_s=PATIENCE_S)
    assert "deadline" in result.err
    assert [name for name in release.lab.names("Pod") if name.startswith(SET)] == [f"{SET}-0"]
    assert not pods.is_ready(release.lab.get("Pod", f"{SET}-0"))


def test_nodes_whose_names_wait_for_readiness_never_meet(release: Release) -> None:
    release.lab.cluster.mutate(
        lambda document: (
            altered(document, "spec.publishNotReadyAddresses", False)
            if document["kind"] == "Service" and Manifest(document).text("spec.clusterIP") == "None"
            else document
        )
    )
    result = release.attempt("install", timeout_s=PATIENCE_S)
    assert "deadline" in result.err
    for name in release.node_pods(3):
        assert not pods.is_ready(release.lab.get("Pod", name))
    assert "waits for all voters" in release.lab.log(f"{SET}-0")


def test_a_drain_longer_than_the_grace_period_is_cut_off(release: Release) -> None:
    release.lab.cluster.mutate(
        lambda document: (
            with_command(document, "milena drain; sleep 60", 4)
            if document["kind"] == "StatefulSet"
            else document
        )
    )
    release.helm("install")
    mark = release.mark()
    release.lab.delete_pod(f"{SET}-2", 4)
    release.lab.wait_for(lambda: bool(release.stops_since(mark)), 30, "the node is stopped")
    assert unclean(release.stops_since(mark))
