"""Figures of the Spark bench: ratios of rounds, targets, the picture, and memory by thirds; without a Spark."""

import click
import pytest

from loadtest.bench.spark import ways
from loadtest.bench.spark.bare import BareReader, BareStreamReader
from loadtest.bench.spark.chart import draw_spark
from loadtest.bench.spark.memory import HEAP, JVM, NODE, MemoryWatch
from loadtest.bench.spark.ways import (
    JSON_LINES,
    MILENA,
    PARQUET,
    MeasuredOperation,
    SparkComparison,
    TimedRun,
    compare,
    comparisons_text,
    runs_text,
    take_turns,
)
from spark_ext.rows.read_schema import project, row_schema
from tests.support.pictures import cut_off, saved_figures


def operation(**found: int) -> MeasuredOperation:
    """Ways that find so many records, of ten."""
    calls = {name.replace("_", " "): lambda n=n: n for name, n in found.items()}
    return MeasuredOperation(name="count", ways=calls, records=10, targets={JSON_LINES: 1.5})


def run(way: str, wall_s: float, cpu_s: float = 1.0) -> TimedRun:
    return TimedRun(operation="count", way=way, wall_s=wall_s, cpu_s=cpu_s)


def test_the_first_round_is_not_counted(monkeypatch):
    monkeypatch.setattr(ways, "tree_cpu_s", lambda: 0.0)
    measured = take_turns([operation(milena=10, json_lines=10)], 2)
    assert [each.way for each in measured] == [MILENA, JSON_LINES] * 2


def test_a_way_that_misses_records_is_no_measurement(monkeypatch):
    monkeypatch.setattr(ways, "tree_cpu_s", lambda: 0.0)
    with pytest.raises(click.ClickException, match="count of json lines found 9 records"):
        take_turns([operation(milena=10, json_lines=9)], 1)


def test_the_median_of_the_rounds_ratios_counts():
    measured = [
        *(run(MILENA, 1.0), run(JSON_LINES, 2.0), run(PARQUET, 0.5)),
        *(run(MILENA, 2.0), run(JSON_LINES, 2.0), run(PARQUET, 1.0)),
        *(run(MILENA, 1.0), run(JSON_LINES, 9.0), run(PARQUET, 0.5)),
    ]
    counted = operation(milena=10, json_lines=10, parquet=10)
    lines, files = compare([counted], measured)
    assert (lines.other, lines.wall, lines.target, lines.is_met) == (JSON_LINES, 2.0, 1.5, True)
    assert (files.other, files.wall, files.target, files.is_met) == (PARQUET, 0.5, None, True)
    assert "json lines" in runs_text([counted], measured)


def comparison(wall: float, target: float | None) -> SparkComparison:
    return SparkComparison(
        operation="stream aggregate", other="plain write", wall=wall, cpu=None, target=target
    )


def test_a_target_that_is_missed_is_marked():
    text = comparisons_text([comparison(0.6, 0.7), comparison(0.8, 0.7), comparison(0.1, None)])
    assert [line.endswith("MISSED") for line in text.splitlines()] == [False, True, False, False]


@pytest.mark.parametrize("kind", [BareReader, BareStreamReader])
def test_the_bare_source_has_as_many_rows_of_the_same_columns(kind):
    schema = row_schema(include_headers=False)
    reader = kind({"records": "2700003", "valueBytes": "2"}, schema)
    tasks = reader.partitions(*[{}] * (2 if kind is BareStreamReader else 0))
    assert len(tasks) == 3
    batches = [batch for task in tasks for batch in reader.read(task)]
    assert sum(batch.num_rows for batch in batches) == 2_700_003
    arrow_schema = project(schema, include_headers=False).arrow_schema()
    assert all(batch.schema == arrow_schema for batch in batches)


@pytest.mark.parametrize(
    ("delays_ms", "told"),
    [
        ([], []),
        ([5.0], ["p50 5 ms", "p99 5 ms"]),
        ([float(n) for n in range(1, 101)], ["p50 50 ms", "p99 99 ms"]),
    ],
)
def test_the_picture_shows_every_ratio_and_the_delays(delays_ms, told, tmp_path, monkeypatch):
    figures = saved_figures(monkeypatch)
    comparisons = [comparison(0.6, 0.7), comparison(3.2, 1.0), comparison(1.1, None)]
    draw_spark(comparisons, delays_ms, tmp_path / "picture.png", title="a run " * 40)
    (figure,) = figures
    assert cut_off(figure) == []
    above, below = figure.axes
    assert [patch.get_width() for patch in above.patches] == [0.6, 3.2, 1.1]
    assert [text.get_text() for text in below.texts] == told


def test_growth_is_of_the_last_third_beside_the_second():
    watch = MemoryWatch(lambda: 0.0)
    watch.samples = [{NODE: mb} for mb in (100.0, 100.0, 200.0, 200.0, 220.0, 220.0)]
    (found,) = watch.by_kind()
    assert (found.kind, found.thirds, found.most) == (NODE, (100.0, 200.0, 220.0), 220.0)
    assert found.growth == pytest.approx(0.1)


def test_of_a_jvm_counts_what_its_heap_holds_which_is_looked_at_less_often():
    watch = MemoryWatch(lambda: 0.0)
    watch.samples = [{JVM: 10.0 * n} | ({HEAP: 50.0 + n} if n % 4 == 0 else {}) for n in range(9)]
    whole, heap = watch.by_kind()
    assert (whole.kind, whole.is_judged) == (JVM, False)
    assert (heap.kind, heap.thirds, heap.is_judged) == (HEAP, (50.0, 54.0, 58.0), True)
