"""What many consumers cost: how the figures are shown; the run itself on a few of them."""

import json

import pytest
from click.testing import CliRunner

from loadtest.bench import consumers
from loadtest.bench.consumers import Counted, table
from loadtest.bench.many_partitions import PhaseFigures

ONE = Counted(
    measured=PhaseFigures(
        phase="idle", wall_s=10.0, cpu_s={1: 0.2, 2: 0.5}, rss_mb={1: 70.4, 2: 71.6}
    ),
    calls=250,
    raft_entries=3,
)


def test_the_table_has_a_line_a_phase():
    head, line = table([ONE]).splitlines()
    assert head.split("  ")[0] == "PHASE"
    assert line.split() == ["idle", "10.0", "25", "3", "2.0", "5.0", "70", "72"]


@pytest.mark.integration
def test_beating_adds_nothing_to_the_raft_log_and_an_empty_read_one_entry_at_most(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(consumers, "SETTLE_S", 1.0)
    path = tmp_path / "figures.json"
    words = ["--consumers", "12", "--groups", "4", "--members", "5", "--streams", "6"]
    words += ["--idle", "0.5", "--beat", "0.5", "--json", str(path)]
    done = CliRunner().invoke(consumers.main, words)
    assert done.exit_code == 0, done.output
    phases = {p["measured"]["phase"]: p for p in json.loads(path.read_text())["phases"]}
    # The controller compares all images now and then, and a busy node may be out of sync for a moment.
    for phase, entries_per_call in (("each reads again", 1.5), ("beating", 0.5)):
        # An answer without records is confirmed by the quorum, once for all that wait on a node: that is an entry.
        assert phases[phase]["raft_entries"] < phases[phase]["calls"] * entries_per_call, phases[
            phase
        ]
    assert phases["beating"]["calls"] > 5
    assert phases["12 REST consumers: made"]["calls"] == 12
