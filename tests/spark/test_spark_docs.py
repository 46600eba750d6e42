"""What docs/spark.md shows is run, and its options are those that there are."""

import doctest
import re
from pathlib import Path

import pytest

from spark_ext import options

TEXT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(language: str) -> list[str]:
    """The code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.integration
def test_the_examples_show_what_happens(spark, cluster):
    code = "\n".join(blocks("pycon")).replace("http://localhost:8082", cluster.node(1).url)
    names = {"spark": spark}
    for block in blocks("python"):
        exec(block, names)
    examples = doctest.DocTestParser().get_doctest(code, names, "docs/spark.md", None, 0)
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(examples, out=report.append)
    assert result.attempted > 15
    assert result.failed == 0, "".join(report)


def test_every_option_is_explained():
    named = set(re.findall(r"`([A-Za-z.]+)`", TEXT))
    assert set(options._READ) | set(options._WRITE) <= named
