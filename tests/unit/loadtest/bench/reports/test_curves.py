"""Curves of a run: points are medians of the rounds, and what was not measured has no place in the picture."""

import pytest
from matplotlib.figure import Figure

from loadtest.bench.measuring.samples import PERCENTS, Quantity, Rounds, Sample, Spread
from loadtest.bench.reports.curve_chart import PANELS, draw_curves
from loadtest.bench.reports.curves import TURNS, LatencyPanel, distribution, points
from loadtest.bench.stages.curves import node_counts
from tests.support.pictures import cut_off, saved_figures

TITLE = "5 rounds of 2 s, compiled nodes, Python 3.11.9, built without a profile, 16 cores, ext4"


def _rounds(rates: dict[str, list[float]]) -> Rounds:
    rounds = Rounds()
    for name, values in rates.items():
        for value in values:
            rounds.note(name, Sample(figures={Quantity.RATE: value}))
    return rounds


def _distribution(*rounds_ms: dict[float, float]) -> Rounds:
    rounds = Rounds()
    for percentiles in rounds_ms:
        rounds.note("one", Sample(figures={}, percentiles=percentiles))
    return rounds


def _everything() -> dict[str, Rounds]:
    stages = {"curves": Rounds(facts={TURNS: "3 rounds of 1 s"})}
    for panel in PANELS:
        rounds = stages.setdefault(panel.stage, Rounds())
        if isinstance(panel, LatencyPanel):
            for number, name in enumerate(panel.contenders.values()):
                percentiles = {percent: (number + 1) / (100.05 - percent) for percent in PERCENTS}
                rounds.note(name, Sample(figures={}, percentiles=percentiles))
            continue
        for curve in panel.curves.values():
            for count, name in curve.items():
                rounds.note(name, Sample(figures={Quantity.RATE: 1234567.0 * count}))
    return stages


def test_a_point_is_where_a_contender_was_measured():
    rounds = _rounds({"one": [1, 9, 5], "three": [7]})
    rounds.note("three", None)
    assert points(rounds, {1: "one", 3: "three", 5: "five"}) == {
        1: Spread(median=5, least=1, greatest=9, count=3),
        3: Spread(median=7, least=7, greatest=7, count=1),
    }


def test_a_distribution_is_of_the_percentiles_that_all_rounds_could_tell():
    rounds = _distribution({50: 1.0, 99: 9.0}, {50: 3.0})
    rounds.note("one", None)
    found = distribution(rounds, "one")
    assert {percent: spread.median for percent, spread in found.items()} == {50: 2.0}
    assert distribution(rounds, "nobody") == {}


@pytest.mark.parametrize(("cores", "counts"), [(1, [1, 3]), (5, [1, 3]), (6, [1, 3, 5])])
def test_five_nodes_take_part_where_each_has_a_core_and_the_clients_one(cores, counts):
    assert node_counts(cores) == counts


def test_nothing_is_cut_off_however_many_curves_there_are(tmp_path, monkeypatch):
    figures, everything = saved_figures(monkeypatch), _everything()
    for names in (everything, ["curves"], ["latency"]):
        stages = {name: everything[name] for name in names}
        draw_curves(stages, tmp_path / "curves.png", title=TITLE)
    assert [cut_off(figure) for figure in figures] == [[], [], []]
    ends = [figure.get_suptitle().splitlines()[-1] for figure in figures]
    assert [end.endswith("3 rounds of 1 s") for end in ends] == [True, True, False]
    assert [_drawn(figure) for figure in figures] == [len(PANELS), len(PANELS) - 2, 1]


def _drawn(figure: Figure) -> int:
    return sum(bool(axis.lines) for axis in figure.axes)


def test_a_run_without_curves_leaves_no_picture_not_even_an_older_one(tmp_path):
    path = tmp_path / "curves.png"
    path.write_bytes(b"of a run before")
    draw_curves({"fetch": _rounds({"one": [1.0]}), "curves": Rounds()}, path, title=TITLE)
    assert not path.exists()
