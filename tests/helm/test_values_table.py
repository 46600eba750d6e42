"""The page on Kubernetes names every value, and names no other."""

import re
from typing import Any

import pytest
import yaml

from tests.helm.charts import CHART, ROOT, VALUES
from tests.helm.settings import SET_BY_CHART
from tests.helm.values_table import PAGE, described, undescribed, with_table

SOURCE = (CHART / "values.yaml").read_text(encoding="utf-8")
DEFAULTS: dict[str, Any] = yaml.safe_load(SOURCE)
TEXT = PAGE.read_text(encoding="utf-8")


def paths(values: dict[str, Any], at: str = "") -> set[str]:
    found = set()
    for name, value in values.items():
        here = f"{at}.{name}".lstrip(".")
        found |= {here, *(paths(value, here) if isinstance(value, dict) else ())}
    return found


def test_every_value_is_described() -> None:
    known = {one.path for one in described(SOURCE)}
    assert not list(undescribed(DEFAULTS, known))
    for one in described(SOURCE):
        assert one.text.rstrip("*`").endswith("."), one


def test_the_table_of_values_is_up_to_date() -> None:
    assert with_table(TEXT) == TEXT, "run: python -m tests.helm.values_table"


def test_values_that_the_text_names_exist() -> None:
    prose = TEXT.partition("<!-- values: begin -->")[0]
    known = paths(DEFAULTS) | {f"config.{name}" for name in SET_BY_CHART}
    known |= {"tls.crt", "tls.key"}  # keys of secrets
    heads = set(DEFAULTS)
    named = {
        name
        for name in re.findall(r"`([A-Za-z]+(?:\.[A-Za-z_]+)+)`", prose)
        if name.partition(".")[0] in heads
    }
    named |= set(re.findall(r"--set '?([A-Za-z.]+)=", prose))
    assert named
    assert not [
        name
        for name in named
        if name not in known and not name.startswith(("config.", "resources."))
    ]


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_examples_say_what_they_show(path: Any) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{chart["appVersion"]}"' in project
