"""What docs/pipeline.md says is so: its walk prints what it shows, its options and exit codes are those there are."""

import re
from pathlib import Path

import click
import pytest

from examples.alerts import alerts
from examples.demand_prices import demand_prices
from examples.sessions import sessions
from examples.site_stats import site_stats
from spark_ext.jobs.archive import archive
from spark_ext.jobs.audit import audit
from spark_ext.jobs.replay import replay
from spark_ext.jobs.running import command, errors
from tests.support.http.console import blocks, started, steps

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")


@pytest.mark.integration
@pytest.mark.long
def test_the_walk_prints_what_the_document_says(tmp_path):
    """With a Spark of its own for each job, as a reader would."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    walk = steps(TEXT)
    assert len(walk) >= 7
    start = next(block for block in blocks(TEXT, "sh") if block.startswith("milena dev"))
    with started(start, tmp_path) as place:
        for step in walk:
            place.check([step])


@pytest.mark.parametrize(
    "job",
    [archive, replay, audit, site_stats, alerts, sessions, demand_prices],
    ids=lambda job: job.name,
)
def test_every_option_is_explained(job):
    section = TEXT.split(f"\n## {job.name.replace('-', '_')}\n")[1].split("\n## ")[0]
    options = {name for p in job.params if isinstance(p, click.Option) for name in p.opts}
    assert set(re.findall(r"--[a-z-]+", section)) >= options - {"-h", "--help"}
    rows = re.findall(r"^\| (`--.*?`) \|", section, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"--[a-z-]+", row)} <= options


def test_every_exit_code_is_explained():
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)}
    kinds = errors.JobError.__subclasses__()
    assert listed == {
        0,
        errors.EXIT_FAILED,
        command.EXIT_USAGE,
        *(k.exit_code for k in kinds),
    }
