"""The picture of a run of the figures."""

from loadtest.bench.measuring.samples import Spread
from loadtest.bench.reports.chart import draw
from loadtest.bench.rows.table import TARGETS
from loadtest.bench.targets import TargetOutcome, TargetVerdict
from tests.support.pictures import cut_off, saved_figures

TITLE = "5 rounds of 5 s, compiled nodes, Python 3.11.9 (CPython), 16 cores, ext4 on a disk whose syncs cost something"


def test_nothing_is_cut_off_however_many_rows_there_are(tmp_path, monkeypatch):
    figures = saved_figures(monkeypatch)
    outcomes = [
        TargetOutcome(target=target, verdict=TargetVerdict.FLOOR, spread=Spread.of([0.5, 1.0, 7.0]))
        for target in TARGETS
    ]
    for some in (outcomes, outcomes[:2], []):
        draw(some, tmp_path / "bench.png", title=TITLE)
    assert [cut_off(figure) for figure in figures] == [[], [], []]
