"""What is installed to watch a cluster: the page on metrics, the rules, and the dashboards."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "helm" / "milena" / "rules" / "milena.yaml"
CASES = Path(__file__).parent / "alerts.yaml"
DASHBOARDS = tuple(sorted((ROOT / "helm" / "milena" / "dashboards").glob("*.json")))
PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")

PARTS = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
"""Ends of the series of a metric, by its type."""
_ROW = re.compile(r"^\| `((?:milena|process)_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
_NAME = re.compile(r"(?<![\w:])((?:milena|process)_\w+)(?=\{)")


@dataclass(frozen=True, slots=True)
class Documented:
    """A row of the page's tables."""

    type: str
    labels: frozenset[str]


def documented() -> dict[str, Documented]:
    """Return every metric of the page."""
    rows = _ROW.findall(PAGE)
    found = {
        name: Documented(kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in rows
    }
    assert len(found) == len(rows), "no metric has two rows"
    return found


def documented_series() -> set[str]:
    """Return the names that queries may use."""
    return {name + end for name, row in documented().items() for end in PARTS.get(row.type, ("",))}


def rules() -> list[dict[str, Any]]:
    """Return all rules, which are alerts or records."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of a dashboard, with its queries."""

    dashboard: str
    title: str
    expressions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.title}"


def dashboard(path: Path) -> dict[str, Any]:
    """Return a dashboard as Grafana reads it."""
    found = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def panels() -> Iterator[Panel]:
    """Yield all panels."""
    for path in DASHBOARDS:
        for panel in dashboard(path)["panels"]:
            expressions = tuple(target["expr"] for target in panel["targets"])
            yield Panel(path.stem, panel["title"], expressions)


def metrics_in(expression: str) -> set[str]:
    """Return the metrics that a query selects."""
    return set(_NAME.findall(expression))


def filled_in(expression: str, variables: Mapping[str, str]) -> str:
    """Return a query as Grafana sends it."""
    filled = re.sub(r"\$(\w+)", lambda match: variables[match[1]], expression)
    assert "$" not in filled, filled
    return filled
