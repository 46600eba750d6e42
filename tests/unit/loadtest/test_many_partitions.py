"""What many partitions cost: the figures and how they are shown; the run itself on a few partitions."""

import json

import pytest
from click.testing import CliRunner

from loadtest.bench import many_partitions
from loadtest.bench.many_partitions import PhaseFigures, table

ONE = PhaseFigures(phase="idle", wall_s=10.0, cpu_s={1: 0.2, 2: 0.5}, rss_mb={1: 70.4, 2: 71.6})


def test_the_busiest_node_counts():
    assert ONE.cpu_percent == pytest.approx(5.0)


def test_the_table_has_a_line_a_phase():
    head, line = table([ONE]).splitlines()
    assert head.split("  ")[0] == "PHASE"
    assert line.split() == ["idle", "10.0", "0.20", "0.50", "5.0", "70", "72"]


@pytest.mark.integration
def test_a_few_partitions_are_created_idle_and_failed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(many_partitions, "SETTLE_S", 0.1)
    monkeypatch.setattr(many_partitions, "REQUEST_PARTITIONS_MAX", 4)
    path = tmp_path / "figures.json"
    words = ["--partitions", "9", "--topics", "1", "--idle", "0.2", "--json", str(path)]
    done = CliRunner().invoke(many_partitions.main, [*words, "--create-limit", "0"])
    assert (done.exit_code, "more than 0 s" in done.output) == (1, True), done.output
    figures = json.loads(path.read_text())
    assert [phase["phase"].partition(":")[0] for phase in figures["phases"]] == [
        "idle, empty", "create", "create", "idle", "kill -9", "kill -9", "restart",
    ]  # fmt: skip
    assert 0 < figures["created_s"] < 30
    assert "9 partitions in 1 topics on 3 nodes" in done.output
