"""Two trees beside one another: noise is no regression, and the base's nodes run from the base's files."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from loadtest.bench.compare import judged, main, measure, rows_of
from loadtest.bench.measuring.samples import Quantity, Rounds, Sample
from loadtest.bench.plan import BenchPlan
from loadtest.bench.reports.comparison import (
    RowVerdict,
    base_name,
    compare,
    exit_code,
    figures,
    interval_of,
    table,
)
from loadtest.bench.reports.report import Machine
from loadtest.bench.rows.produce import ONE_ALL, SINGLE_ALL_AWAKE
from loadtest.bench.servers.base_tree import BaseTreeError, check_out, environment_of
from loadtest.bench.stages import IN_TURNS
from loadtest.bench.targets import Durability, Target

ROW = Target(name="row", what="", stage="fetch", subject="ours", durability=Durability.NONE)
NOISE = [0.97, 1.03, 1.01, 0.99, 1.02, 0.98, 1.0, 1.04]
WIDE = [0.4, 1.9, 0.7, 1.6, 0.8, 0.9, 0.5, 1.2]
SLOWER = [0.9, 0.88, 0.91, 0.9, 0.89, 0.92, 0.9, 0.87]
MACHINE = Machine(cores=2, python="3.11", build="pure", file_system="ext4", is_disk_real=True)


def _sample(value: float) -> Sample:
    return Sample(figures={Quantity.RATE: value, Quantity.P50: value})


def _rounds(ratios: list[float]) -> Rounds:
    rounds = Rounds()
    for number, ratio in enumerate(ratios, start=1):
        rounds.note(base_name("ours"), _sample(100.0 * number))
        rounds.note("ours", _sample(100.0 * number * ratio))
    return rounds


@pytest.mark.parametrize(
    ("ratios", "change", "of_less"),
    [
        (NOISE, RowVerdict.SAME, RowVerdict.SAME),
        (WIDE, RowVerdict.SAME, RowVerdict.SAME),
        (SLOWER, RowVerdict.WORSE, RowVerdict.BETTER),
        (SLOWER[:5], RowVerdict.WORSE, RowVerdict.BETTER),
        ([1 / ratio for ratio in SLOWER], RowVerdict.BETTER, RowVerdict.WORSE),
        # For certain, and too little to matter.
        ([0.97] * 8, RowVerdict.SAME, RowVerdict.SAME),
        # One of eight on the other side may be chance.
        ([*SLOWER[:7], 1.01], RowVerdict.SAME, RowVerdict.SAME),
        ([*SLOWER, *SLOWER, 1.5], RowVerdict.WORSE, RowVerdict.BETTER),
    ],
)
def test_a_row_is_worse_only_where_its_rounds_agree_on_more_than_the_tolerance(
    ratios, change, of_less
):
    assert compare(ROW, _rounds(ratios)).change is change
    assert compare(replace(ROW, quantity=Quantity.P50), _rounds(ratios)).change is of_less


@pytest.mark.parametrize(("count", "left_out"), [(5, 0), (8, 0), (11, 0), (12, 1), (15, 2)])
def test_the_interval_leaves_out_as_many_rounds_as_its_confidence_lets_it(count, left_out):
    interval = interval_of([float(number) for number in range(count)])
    assert (interval.least, interval.greatest) == (left_out, count - 1 - left_out)


def test_a_row_shows_both_figures_and_which_ratios_are_better_ones():
    absent = compare(ROW, Rounds(failures={"ours": "no device"}))
    _, line, missing, _, note = table([compare(ROW, _rounds(SLOWER)), absent]).splitlines()
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == [
        "row", "ours", "0.900", "0.870 .. 0.920", "above 1", "WORSE", "402 / 450 units/s",
    ]  # fmt: skip
    assert "not measured" in missing
    assert note == "row: no device"


@pytest.mark.parametrize(("ratios", "code"), [([], 2), (NOISE, 0), (SLOWER, 1)])
def test_the_exit_code_and_the_record_tell_of_a_row_that_is_worse(ratios, code):
    rows = [compare(ROW, _rounds([])), compare(ROW, _rounds(ratios))]
    assert exit_code(rows) == code
    record = figures(rows, {"fetch": _rounds(ratios)}, MACHINE)
    assert json.loads(json.dumps(record))["rows"][1]["change"] == rows[1].change.value


@pytest.mark.parametrize(
    ("tolerance", "change"), [(0.05, RowVerdict.WORSE), (0.15, RowVerdict.SAME)]
)
def test_what_is_tolerated_is_the_same(tolerance, change):
    assert compare(ROW, _rounds(SLOWER), tolerance).change is change


@pytest.mark.parametrize(
    ("first", "second", "change"),
    [
        (NOISE, None, RowVerdict.SAME),
        (SLOWER, NOISE, RowVerdict.SAME),
        (SLOWER, SLOWER, RowVerdict.WORSE),
    ],
)
def test_a_row_is_worse_only_where_twice_the_rounds_say_so_again(first, second, change):
    other, asked = replace(ROW, name="other", stage="latency"), []
    measurements = [{"fetch": _rounds(first), "latency": _rounds(NOISE)}]
    if second is not None:
        measurements.append({"fetch": _rounds(second)})

    def measured(rows, rounds):
        asked.append(([row.name for row in rows], rounds))
        return measurements[len(asked) - 1]

    compared, stages = judged([ROW, other], 5, 0.05, measured, is_repeated=True)
    assert [(row.target.name, row.change) for row in compared] == [
        ("row", change), ("other", RowVerdict.SAME),
    ]  # fmt: skip
    assert asked == [(["row", "other"], 5), (["row"], 10)][: len(measurements)]
    assert stages.keys() == {"fetch", "latency"}


def test_each_figure_of_milena_is_a_row_once_and_needs_turns():
    rows = rows_of(None)
    assert {row.stage for row in rows} == {"requests", "batches", "latency", "fetch"}
    assert [row.name for row in rows if row.subject == SINGLE_ALL_AWAKE] == ["latency"]
    assert [row.name for row in rows_of("durable,fetch")] == ["durable", "fetch"]
    with pytest.raises(click.BadParameter, match="no two programs take turns in recovery"):
        rows_of("fetch,recovery")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """One commit, of a program that is pure and cannot be compiled."""
    package = tmp_path / "milena"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("print(f'milena (pure), {__file__}')\n")
    (tmp_path / "build_support.py").write_text("raise SystemExit('no compiler')\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    (package / "__main__.py").write_text("raise SystemExit('the working tree')\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("repository")
def test_the_base_runs_from_its_own_files_and_never_in_another_kind():
    tree = check_out("HEAD")
    assert check_out("HEAD") == tree, "it is made once"
    environment = environment_of(tree, "pure")
    ask = [sys.executable, "-m", "milena"]
    told = subprocess.run(ask, env=environment, capture_output=True, text=True, check=True).stdout
    assert told == f"milena (pure), {tree}/milena/__main__.py\n"
    with pytest.raises(BaseTreeError, match=r"cannot be compiled as .*no compiler"):
        environment_of(tree, "compiled")
    (tree / "build_support.py").write_text("print('somewhere')\n")
    with pytest.raises(BaseTreeError, match="this tree is compiled, and the base says"):
        environment_of(tree, "compiled")


@pytest.mark.usefixtures("repository")
def test_a_commit_that_is_not_there_is_named():
    done = CliRunner().invoke(main, ["--base", "nothing"])
    assert done.exit_code == 1
    assert "no commit nothing" in done.output


@pytest.mark.integration
async def test_both_trees_take_a_turn_in_each_round(tmp_path):
    root = Path(__file__).parents[4]
    plan = BenchPlan(directory=tmp_path / "a", rounds=2, seconds=0.1, has_peers=False)
    names = {ONE_ALL, base_name(ONE_ALL)}
    base = {"PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"}
    rounds = await measure(IN_TURNS["requests"], names, plan, base)
    assert list(rounds.samples) == [base_name(ONE_ALL), ONE_ALL]
    assert len(rounds.ratios(ONE_ALL, base_name(ONE_ALL), Quantity.RATE)) == 2
    assert not plan.directory.exists()
