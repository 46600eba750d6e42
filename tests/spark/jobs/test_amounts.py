"""Numbers of things in what jobs print: one of them is not a plural."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from spark_ext.jobs.running.amounts import counted

ROOT = Path(__file__).parents[3]
FOLDERS = ("examples", "spark_ext/jobs")
PLURAL = re.compile(
    r" (?!(has|holds|keeps|gives) )([a-z]+ )?"
    r"(batche|difference|file|gap|hour|leftover|line|offset|partition|problem|record|request|row|window)s\b"
)
"""A number may stand before these. A name in capitals is a bound, and never one."""


@pytest.mark.parametrize(
    ("count", "thing", "text"),
    [
        (0, "file", "0 files"),
        (1, "file", "1 file"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (1000, "record", "1,000 records"),
    ],
)
def test_one_is_not_a_plural(count, thing, text):
    assert counted(count, thing) == text


def test_no_job_prints_a_number_before_a_plural_of_its_own():
    found = [
        f"{path.relative_to(ROOT)}:{text.lineno}: {ast.unparse(number)}{after.value}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(text, ast.JoinedStr)
        for number, after in pairwise(text.values)
        if isinstance(number, ast.FormattedValue)
        and isinstance(after, ast.Constant)
        and PLURAL.match(after.value)
        and not ast.unparse(number.value).isupper()
    ]
    assert found == []
