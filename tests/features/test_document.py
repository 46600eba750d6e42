"""docs/features.md and docs/guarantees.md name the tests that there are, and the first of them all of this folder."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("features", "guarantees")
}
HEADS = ("| expected", "| promise", "| what happens", "| ---")
NAMED = {
    name: re.findall(r"`([\w/]*test_\w+\.py)::(test_\w+)`", text) for name, text in PAGES.items()
}
NAMED_ANYWHERE = sorted({named for found in NAMED.values() for named in found})


def file_of(name: str) -> Path:
    """A bare file name is one of this folder; any other is a path from the root."""
    return ROOT / name if "/" in name else Path(__file__).parent / name


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {n.name for n in ast.walk(tree) if isinstance(n, kinds)}
    return {name for name in found if name.startswith("test_")}


@pytest.mark.parametrize(("file", "test"), NAMED_ANYWHERE)
def test_a_test_that_is_named_exists(file: str, test: str) -> None:
    assert test in functions_of(file_of(file)), f"{file} has no {test}"


@pytest.mark.parametrize("page", PAGES)
def test_every_line_of_the_tables_names_a_test(page: str) -> None:
    rows = [line for line in PAGES[page].splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith(HEADS)]
    assert len(promises) > 20
    for row in promises:
        assert "::test_" in row.split("|")[-2], row


def test_no_feature_that_is_shown_goes_unmentioned() -> None:
    shown = {
        (path.name, name)
        for path in Path(__file__).parent.glob("test_*.py")
        if path.name != Path(__file__).name
        for name in functions_of(path)
    }
    assert shown <= set(NAMED["features"])
