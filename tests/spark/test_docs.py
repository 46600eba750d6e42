"""What docs/spark.md shows is run, and its options are those that there are."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ext.options import parsing
from tests.support.clusters.live_cluster import create_topic
from tests.support.disk.stored_topics import fill

TEXT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.split("## From Spark\n")[1].split("\n## ")[0]
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
    assert {*parsing.READ_OPTIONS, *parsing.WRITE_STREAM_OPTIONS} <= named


def told_by_an_activated_environment():
    return {"PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}


def told_by_the_line_in_the_readme():
    """Whatever ``python3`` is on the path: one that knows nothing of the project may be it."""
    (line,) = re.findall(r"export (PYSPARK_PYTHON)=\$PWD/\.venv/bin/python\n", SECTION)
    return {line: sys.executable}


@pytest.mark.integration
@pytest.mark.parametrize("told", [told_by_an_activated_environment, told_by_the_line_in_the_readme])
def test_the_readmes_snippet_works_in_a_script_of_any_folder(cluster, tmp_path, told):
    """In the environment as it is installed: nothing but the interpreter says where the data source is."""
    topic = create_topic(cluster.node(1), told.__name__, partitions=2)
    fill(cluster.node(1), topic, [3, 4])
    (snippet,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    script = tmp_path / "script.py"
    script.write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', False).getOrCreate()\n"
        + snippet.replace("http://localhost:8082", cluster.node(1).url).replace(
            '"visits"', f'"{topic}"'
        )
        + "print('COUNT', visits.count())\n",
        encoding="utf-8",
    )
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK"))}
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**inherited, **told(), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "COUNT 7" in done.stdout
