"""docs/features.md names the tests that there are, and all of this folder."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w/]*test_\w+\.py)::(test_\w+)`", TEXT)


def file_of(name: str) -> Path:
    """A bare file name is one of this folder; any other is a path from the root."""
    return ROOT / name if "/" in name else Path(__file__).parent / name


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {n.name for n in tree.body if isinstance(n, kinds) and n.name.startswith("test_")}


@pytest.mark.parametrize(("file", "test"), NAMED, ids=[test for _, test in NAMED])
def test_a_test_that_is_named_exists(file: str, test: str) -> None:
    assert test in functions_of(file_of(file)), f"{file} has no {test}"


def test_every_line_of_the_table_names_a_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith(("| expected", "| ---"))]
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
    assert shown <= set(NAMED)
