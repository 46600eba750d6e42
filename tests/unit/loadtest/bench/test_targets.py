"""Verdicts: medians against floors and ambitions, in both directions, and what cannot be judged."""

from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.bench.measuring.samples import Quantity, Rounds, Sample
from loadtest.bench.rows.table import TARGETS
from loadtest.bench.stages import STAGES
from loadtest.bench.targets import Durability, Target, TargetVerdict, judge

MORE = Target(
    name="more",
    what="ours / theirs",
    stage="fetch",
    subject="ours",
    reference="theirs",
    durability=Durability.UNSYNCED,
    floor=2,
    ambition=4,
)
LESS = replace(MORE, floor=2, ambition=0.5, quantity=Quantity.P50)


def _sample(value: float) -> Sample:
    return Sample(figures={Quantity.RATE: value, Quantity.P50: value})


def _rounds(ours: list[float], theirs: float = 1.0) -> Rounds:
    rounds = Rounds()
    for value in ours:
        rounds.note("ours", _sample(value))
        rounds.note("theirs", _sample(theirs))
    return rounds


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [
        (MORE, 4, TargetVerdict.AMBITION),
        (MORE, 3.9, TargetVerdict.FLOOR),
        (MORE, 2, TargetVerdict.FLOOR),
        (MORE, 1.9, TargetVerdict.BELOW),
        (LESS, 0.5, TargetVerdict.AMBITION),
        (LESS, 0.6, TargetVerdict.FLOOR),
        (LESS, 2, TargetVerdict.FLOOR),
        (LESS, 2.1, TargetVerdict.BELOW),
        (replace(MORE, floor=None, host_row="host"), 4, TargetVerdict.AMBITION),
        (replace(MORE, floor=None, host_row="host"), 0, TargetVerdict.SHORT),
        (replace(LESS, floor=None, host_row="host"), 0.5, TargetVerdict.AMBITION),
        (replace(LESS, floor=None, host_row="host"), 9, TargetVerdict.SHORT),
        (replace(MORE, floor=None, ambition=None), 9, TargetVerdict.SHOWN),
    ],
)
def test_a_ratio_is_held_against_floor_and_ambition(target, value, verdict):
    assert judge(target, _rounds([value]), is_disk_real=True).verdict is verdict


def test_the_median_counts_and_the_spread_is_told():
    outcome = judge(MORE, _rounds([1, 9, 5]), is_disk_real=True)
    assert outcome.verdict is TargetVerdict.AMBITION
    assert outcome.spread is not None
    assert (outcome.spread.least, outcome.spread.median, outcome.spread.greatest) == (1, 5, 9)


def test_a_figure_without_a_peer_counts_by_itself():
    alone = replace(LESS, reference=None)
    assert judge(alone, _rounds([1.5], theirs=99), is_disk_real=True).verdict is TargetVerdict.FLOOR


def test_a_missing_peer_is_named():
    rounds = Rounds(failures={"theirs": "theirs is not installed; to get it: ask"})
    rounds.note("ours", Sample(figures={Quantity.RATE: 1}))
    outcome = judge(MORE, rounds, is_disk_real=True)
    assert outcome.verdict is TargetVerdict.ABSENT
    assert outcome.note == "theirs is not installed; to get it: ask"


def test_syncs_that_reach_no_disk_are_not_judged():
    durable = replace(MORE, durability=Durability.DURABLE)
    outcome = judge(durable, _rounds([1]), is_disk_real=False)
    assert outcome.verdict is TargetVerdict.SHOWN
    assert "file system" in outcome.note
    assert judge(MORE, _rounds([1]), is_disk_real=False).verdict is TargetVerdict.BELOW
    assert judge(durable, _rounds([1]), is_disk_real=True).verdict is TargetVerdict.BELOW


def test_less_than_the_row_says_is_not_judged():
    rounds = _rounds([1])
    rounds.reduced["ours"] = "with 3 partitions"
    outcome = judge(MORE, rounds, is_disk_real=True)
    assert (outcome.verdict, outcome.note) == (TargetVerdict.SHOWN, "with 3 partitions")


def test_every_row_has_a_name_of_its_own_and_a_stage():
    assert len({target.name for target in TARGETS}) == len(TARGETS)
    assert {target.stage for target in TARGETS} == set(STAGES)


def test_an_ambition_is_beyond_its_floor():
    for target in TARGETS:
        if target.floor is not None:
            assert target.ambition is not None
            assert (target.ambition < target.floor) is target.is_less_better, target.name


def test_what_is_judged_has_a_floor_here_or_in_a_row_against_the_host_in_the_same_rounds():
    rows = {target.name: target for target in TARGETS}
    for target in TARGETS:
        is_judged = target.ambition is not None
        assert [target.floor, target.host_row].count(None) == (1 if is_judged else 2), target.name
        if target.host_row is not None:
            host = rows[target.host_row]
            assert host.floor is not None
            assert host.reference is not None
            assert host.reference.startswith("bare aiohttp"), target.name
            assert (host.stage, host.quantity, host.durability, host.is_less_better) == (
                target.stage,
                target.quantity,
                target.durability,
                target.is_less_better,
            )


_DOCS = Path(__file__).parents[4] / "docs" / "performance.md"


def _documented() -> dict[str, tuple[str, str]]:
    """Floor and ambition of each row of the table, by its name."""
    text = _DOCS.read_text(encoding="utf-8").partition("## The rows\n")[2]
    rows = {}
    for line in text.strip().split("\n\n")[0].splitlines()[2:]:
        named, _, *judged = [cell.strip() for cell in line.strip("|").split("|")]
        names = named.split(", ")
        floors, ambitions = ([part.strip() for part in cell.split(",")] for cell in judged)
        for place, name in enumerate(names):
            rows[name.strip("`")] = (
                floors[place if len(floors) > 1 else 0].strip("`"),
                ambitions[place if len(ambitions) > 1 else 0],
            )
    return rows


def test_the_documented_table_has_every_judged_row_with_its_floor_and_ambition():
    documented = _documented()
    judged = {target.name: target for target in TARGETS if target.ambition is not None}
    assert set(documented) == set(judged)
    for name, (floor, ambition) in documented.items():
        target = judged[name]
        assert float(ambition.split()[0]) == target.ambition, name
        if target.host_row is None:
            assert float(floor.split()[0]) == target.floor, name
        else:
            assert floor == target.host_row, name
