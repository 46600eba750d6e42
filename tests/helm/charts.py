"""Renders the chart with the real helm and reads what came out. A rendering is made once for the same values."""

import functools
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from tests.helm.podlab.helm_cli import find_helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "milena"
VALUES = tuple(sorted((Path(__file__).parent / "values").glob("*.yaml")))
RELEASE = "r"
NAMESPACE = "logs"
MONITORING = (
    "monitoring.coreos.com/v1/ServiceMonitor",
    "monitoring.coreos.com/v1/PrometheusRule",
)
RUN_S_MAX = 120.0

Document = dict[str, Any]


class RefusedError(Exception):
    """Helm did not render; the message is helm's."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """All objects of one rendering, hooks too."""

    text: str
    documents: tuple[Document, ...]

    def all(self, kind: str) -> list[Document]:
        """The objects of a kind."""
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str, name_end: str = "") -> Document:
        """The only object of a kind whose name ends so."""
        found = [d for d in self.all(kind) if d["metadata"]["name"].endswith(name_end)]
        assert len(found) == 1, f"{kind} *{name_end}: {[d['metadata']['name'] for d in found]}"
        return found[0]

    @property
    def nodes(self) -> Document:
        """The template of the nodes' pods."""
        return cast("Document", self.one("StatefulSet")["spec"]["template"])

    @property
    def container(self) -> Document:
        """The container of a node."""
        return cast("Document", self.nodes["spec"]["containers"][0])

    @property
    def checksum(self) -> str:
        """The annotation that changes with the configuration."""
        return cast("str", self.nodes["metadata"]["annotations"]["checksum/config"])

    def pods(self) -> Iterator[tuple[str, Document]]:
        """Every pod and pod template, with the name of what makes it."""
        for document in self.documents:
            name = f"{document['kind']}/{document['metadata']['name']}"
            if document["kind"] == "Pod":
                yield name, document
            elif "template" in document.get("spec", {}):
                yield name, document["spec"]["template"]


def render(
    values: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    *,
    api_versions: tuple[str, ...] = MONITORING,
) -> Rendering:
    """The chart with a file of values, and values given as nested mappings on top.

    Raises:
        RefusedError: The schema or a check of the chart refused them.
    """
    return _render(values, json.dumps(overrides or {}, sort_keys=True), api_versions)


@functools.cache
def _render(values: Path | None, overrides: str, api_versions: tuple[str, ...]) -> Rendering:
    arguments = ["template", RELEASE, str(CHART), "--namespace", NAMESPACE]
    arguments += [word for version in api_versions for word in ("--api-versions", version)]
    if values is not None:
        arguments += ["--values", str(values)]
    # JSON is YAML; from standard input, so that no file has to be made.
    done = helm(*arguments, "--values", "-", given=overrides)
    if done.returncode:
        raise RefusedError(done.stderr)
    documents = tuple(d for d in yaml.safe_load_all(done.stdout) if d)
    return Rendering(text=done.stdout, documents=documents)


def helm(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run helm, which knows no cluster and no home here."""
    return subprocess.run(
        [find_helm(), *arguments],
        env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"},
        input=given,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )


def nested(path: str, value: object) -> dict[str, object]:
    """``{"a": {"b": value}}`` for ``a.b``."""
    result = value
    for name in reversed(path.split(".")):
        result = {name: result}
    return cast("dict[str, object]", result)


def is_subset(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether the labels are selected."""
    return all(labels.get(name) == value for name, value in selector.items())
