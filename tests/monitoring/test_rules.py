"""Rules and dashboards name what exists; every alert is described, and has a case that fires and one that does not."""

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.charts import NAMESPACE, nested, render
from tests.monitoring.monitored import (
    CASES,
    DASHBOARDS,
    PAGE,
    RULES,
    dashboard,
    documented_series,
    metrics_in,
    panels,
    rules,
)

ALERTS = [rule for rule in rules() if "alert" in rule]
RECORDS = {rule["record"] for rule in rules() if "record" in rule}
FOREIGN = {"up"}
"""Series that Prometheus makes itself."""
needs_promtool = pytest.mark.long
"""These run in ``make test-monitoring``."""


def cases() -> list[dict[str, Any]]:
    tests = yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
    return [case for test in tests for case in test["alert_rule_test"]]


def test_every_alert_has_a_case_that_fires_and_one_that_does_not():
    found = {(case["alertname"], bool(case["exp_alerts"])) for case in cases()}
    assert found == {(rule["alert"], fires) for rule in ALERTS for fires in (True, False)}


def test_an_alert_that_does_not_fire_has_the_series_that_it_looks_at():
    """Without series, no alert could fire."""
    tests = yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
    wanted = {rule["alert"]: rule["expr"] for rule in ALERTS}
    for test in tests:
        given = {re.match(r"\w+", row["series"])[0] for row in test["input_series"]}
        for case in test["alert_rule_test"]:
            if not case["exp_alerts"]:
                named = metrics_in(wanted[case["alertname"]]) or given & FOREIGN
                assert named <= given or any(name in wanted[case["alertname"]] for name in RECORDS)
                assert given


def test_alerts_say_how_bad_it_is_and_what_happened():
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)
    for rule in ALERTS:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"].endswith(".")


def test_the_page_has_every_alert_with_its_severity_and_no_other():
    told = re.findall(r"^\| `(Milena\w+)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert sorted(told) == sorted((rule["alert"], rule["labels"]["severity"]) for rule in ALERTS)
    assert set(re.findall(r"`(milena:\w+:\w+)`", PAGE)) == RECORDS


def test_every_rule_selects_the_nodes_of_a_cluster_by_one_text_that_the_chart_replaces():
    for rule in rules():
        selectors = re.findall(r"\{(.*?)\}", rule["expr"])
        assert selectors
        # Some also leave out the groups of named producers.
        assert {text.partition(", ")[0] for text in selectors} == {'job=~"milena.*"'}, rule
        assert rule["expr"].count("milena_") + rule["expr"].count("milena:") <= len(selectors)


def test_rules_and_panels_name_metrics_that_the_page_has():
    known = documented_series()
    queries = [rule["expr"] for rule in rules()]
    queries += [expression for panel in panels() for expression in panel.expressions]
    for query in queries:
        assert metrics_in(query) <= known, query
        assert metrics_in(query) or FOREIGN & set(re.findall(r"\w+", query)) or "milena:" in query


def test_the_chart_installs_the_same_rules_for_its_own_nodes():
    rule = render(overrides=nested("metrics.prometheusRule.enabled", True)).one("PrometheusRule")
    installed = [one for group in rule["spec"]["groups"] for one in group["rules"]]
    own = f'namespace="{NAMESPACE}",service="r-milena-headless"'
    assert installed == [
        {**one, "expr": one["expr"].replace('job=~"milena.*"', own)} for one in rules()
    ]


def test_the_chart_installs_every_dashboard_unless_it_is_told_not_to():
    assert not render().all("ConfigMap")[1:]
    made = render(overrides=nested("metrics.dashboards.enabled", True)).one(
        "ConfigMap", "dashboards"
    )
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: text.strip() for name, text in made["data"].items()} == {
        f"milena-{path.name}": path.read_text(encoding="utf-8").strip() for path in DASHBOARDS
    }


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_as_grafana_wants_it(path: Path):
    found = dashboard(path)
    assert found["uid"] == f"milena-{path.stem}"
    assert f"`{path.name}` | {found['title']} |" in PAGE
    variables = {one["name"] for one in found["templating"]["list"]}
    text = path.read_text(encoding="utf-8")
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__all"}
    assert used == variables
    ids = Counter(panel["id"] for panel in found["panels"])
    titles = Counter(panel["title"] for panel in found["panels"])
    assert set(ids.values()) == set(titles.values()) == {1}
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        for target in panel["targets"]:
            # Every query looks at one cluster.
            assert target["expr"].count('namespace=~"$namespace",job="$job"') == target[
                "expr"
            ].count("{"), target["expr"]


def promtool(*arguments: object) -> str:
    done = subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_promtool
def test_promtool_finds_the_rules_right():
    assert f"{len(rules())} rules found" in promtool("check", "rules", RULES)


@needs_promtool
def test_promtool_finds_the_rules_of_the_chart_right(tmp_path):
    rule = render(overrides=nested("metrics.prometheusRule.enabled", True)).one("PrometheusRule")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rule["spec"]), encoding="utf-8")
    assert f"{len(rules())} rules found" in promtool("check", "rules", file)


@needs_promtool
def test_every_case_of_an_alert_ends_as_it_should():
    assert "SUCCESS" in promtool("test", "rules", CASES)
