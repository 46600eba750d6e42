"""What a run shows: the table, the record for programs, the picture, the exit code."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.bench.__main__ import file_system_of, interpreter_of
from loadtest.bench.measuring.samples import Quantity, Rounds, Sample, Spread
from loadtest.bench.reports.chart import draw
from loadtest.bench.reports.report import (
    Machine,
    beside,
    contender_table,
    exit_code,
    figures,
    table,
)
from loadtest.bench.targets import Durability, Target, TargetOutcome, TargetVerdict

TARGET = Target(
    name="row",
    what="ours / theirs",
    stage="fetch",
    subject="ours",
    reference="theirs",
    durability=Durability.UNSYNCED,
    floor=2,
    ambition=4,
)
MET = TargetOutcome(
    target=TARGET,
    verdict=TargetVerdict.FLOOR,
    spread=Spread(median=2.54321, least=1.5, greatest=1234.5, count=5),
    ours=Spread(median=25432, least=1, greatest=2, count=5),
    theirs=Spread(median=10000, least=1, greatest=2, count=5),
)
ABSENT = TargetOutcome(target=TARGET, verdict=TargetVerdict.ABSENT, note="theirs is not installed")
MACHINE = Machine(cores=2, python="3.11", build="pure", file_system="ext4", is_disk_real=True)


def test_a_row_shows_its_median_beside_floor_and_ambition():
    _, line = table([MET]).splitlines()
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == [
        "row", "ours / theirs", "unsynced", "2.54", "1.5 .. 1,234", "2", "4", "floor met",
        "25,432 / 10,000 units/s",
    ]  # fmt: skip


def test_what_was_not_measured_is_told_below_the_table():
    lines = table([ABSENT, ABSENT]).splitlines()
    assert "not measured" in lines[1]
    assert lines[3:] == ["", "row: theirs is not installed"]


def test_a_row_that_the_host_bounds_names_the_one_that_has_its_floor():
    bounded = replace(
        MET, target=replace(TARGET, floor=None, host_row="row-host"), verdict=TargetVerdict.SHORT
    )
    _, line, _, meaning = table([bounded]).splitlines()
    assert line.split()[9:15] == ["in", "row-host", "4", "ambition", "not", "met"]
    assert meaning.startswith("in ...: ")
    (row,) = json.loads(json.dumps(figures([bounded], _stages(), MACHINE)))["rows"]
    assert (row["floor"], row["host_row"], row["verdict"]) == (None, "row-host", "short")


def test_what_others_took_of_the_machine_is_told_stage_by_stage():
    stages = {**_stages(), "idle": Rounds(foreign_cpu=0.754)}
    assert beside(stages).endswith("took in the worst turn: fetch 0, idle 0.75.")


def _stages() -> dict[str, Rounds]:
    rounds = Rounds(failures={"theirs": "gone"})
    figures = {Quantity.RATE: 100.0, Quantity.P50: 1.25}
    percentiles = {50: 1.25, 99.9: 7.5}
    rounds.note(
        "ours",
        Sample(figures=figures, percentiles=percentiles, client_cpu=0.25, servers_cpu=0.5),
    )
    rounds.note("theirs", None)
    return {"fetch": rounds}


def test_a_contender_shows_what_it_cost_and_one_that_failed_nothing():
    _, line = contender_table(_stages()).splitlines()
    assert line.split() == [
        "fetch", "ours", "100", "units/s,", "1.25", "p50", "ms", "0.25", "0.5", "200",
    ]  # fmt: skip


def test_the_record_holds_rows_and_every_sample():
    record = json.loads(json.dumps(figures([MET, ABSENT], _stages(), MACHINE)))
    assert record["machine"]["file_system"] == "ext4"
    assert record["machine"]["build"] == "pure"
    assert [row["verdict"] for row in record["rows"]] == ["floor", "absent"]
    assert record["rows"][0]["value"]["median"] == 2.54321
    assert record["rows"][1]["value"] is None
    (sample,) = record["stages"]["fetch"]["samples"]["ours"]
    assert sample["p50 ms"] == 1.25
    assert sample["percentiles ms"] == {"50": 1.25, "99.9": 7.5}
    assert record["stages"]["fetch"]["samples"]["theirs"] == [None]


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([TargetVerdict.AMBITION, TargetVerdict.ABSENT, TargetVerdict.SHOWN], 0),
        ([TargetVerdict.AMBITION, TargetVerdict.BELOW], 1),
        ([TargetVerdict.SHORT], 0),
        ([TargetVerdict.ABSENT, TargetVerdict.ABSENT], 2),
    ],
)
def test_the_exit_code_says_whether_a_row_is_below_its_floor(verdicts, code):
    assert exit_code([replace(MET, verdict=verdict) for verdict in verdicts]) == code


def test_the_picture_takes_every_kind_of_row(tmp_path):
    alone = replace(TARGET, reference=None, quantity=Quantity.P50, floor=2.0, ambition=1.0)
    nothing = Spread(median=0, least=0, greatest=0, count=1)
    outcomes = [
        MET,
        ABSENT,
        TargetOutcome(target=alone, verdict=TargetVerdict.AMBITION, spread=nothing),
        replace(MET, target=replace(TARGET, floor=None, ambition=None)),
        replace(MET, target=replace(TARGET, floor=None, host_row="row-host")),
    ]
    draw(outcomes, tmp_path / "bench.png", title="a run")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_the_file_system_is_that_of_the_nearest_mount():
    mounts = "/dev/a / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n/dev/b /dev/shm/x xfs rw 0 0\n"
    assert file_system_of(Path("/home/data"), mounts) == "ext4"
    assert file_system_of(Path("/dev/shm"), mounts) == "tmpfs"
    assert file_system_of(Path("/dev/shm/xy"), mounts) == "tmpfs"
    assert file_system_of(Path("/dev/shm/x/y"), mounts) == "xfs"
    assert file_system_of(Path("/home"), "") == "unknown"


@pytest.mark.parametrize(
    ("configured", "maps", "said"),
    [
        ("'--enable-shared'", "/opt/lib/libpython3.11.so.1.0\n", "3.11.7, built without a profile"),
        ("'--enable-shared' '--enable-optimizations'", "/opt/lib/libpython3.11.so.1.0\n", "3.11.7"),
        ("'--enable-shared'", "/usr/bin/python3.11\n", "3.11.7"),
    ],
)
def test_a_report_says_when_the_interpreter_is_a_slow_build(configured, maps, said):
    assert interpreter_of("3.11.7", configured, maps) == said
