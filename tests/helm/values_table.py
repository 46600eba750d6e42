"""The table of values in docs/kubernetes.md, made from the comments of the chart's values.

``python -m tests.helm.values_table`` writes it anew.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tests.helm.charts import CHART, ROOT

PAGE = ROOT / "docs" / "kubernetes.md"
BEGIN, END = "<!-- values: begin -->\n", "<!-- values: end -->\n"
DESCRIPTION = "# -- "


@dataclass(frozen=True, slots=True)
class Described:
    """A value with its comment."""

    path: tuple[str, ...]
    text: str


def described(source: str) -> Iterator[Described]:
    """Every value of the file that has a description, in its order."""
    above: list[tuple[int, str]] = []
    text = ""
    for line in source.splitlines():
        stripped = line.strip()
        if stripped.startswith(DESCRIPTION):
            text = stripped.removeprefix(DESCRIPTION)
        elif stripped.startswith("#") and text:
            text += " " + stripped.removeprefix("#").strip()
        elif key := re.match(r"( *)([A-Za-z]\w*):", line):
            indent = len(key[1])
            above = [*((at, name) for at, name in above if at < indent), (indent, key[2])]
            if text:
                yield Described(tuple(name for _, name in above), text)
            text = ""


def default_of(values: dict[str, Any], path: tuple[str, ...]) -> object:
    """What the file says of a value."""
    found: Any = values
    for name in path:
        found = found[name]
    return found


def undescribed(values: dict[str, Any], known: set[tuple[str, ...]]) -> Iterator[str]:
    """Values that neither they nor anything around them describes."""

    def look(at: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
        for name, value in at.items():
            here = (*path, name)
            if here in known:
                continue
            if isinstance(value, dict) and value:
                yield from look(value, here)
            else:
                yield ".".join(here)

    return look(values, ())


def table() -> str:
    """The table as Markdown."""
    source = (CHART / "values.yaml").read_text(encoding="utf-8")
    values = yaml.safe_load(source)
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for one in described(source):
        default = json.dumps(default_of(values, one.path))
        shown = "empty" if default == '""' else f"`{default}`"
        lines.append(f"| `{'.'.join(one.path)}` | {shown} | {one.text} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """A page with the table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
