"""Run the benchmarks of Spark on topics, compared with files: ``make bench-spark``.

    python -m loadtest.bench.spark [--records 2000000] [--rounds 5] [--out bench-report]

The exit code is 1 if a target is missed. ``--note`` goes into the title, for example other load on the machine.
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from loadtest.bench.measuring.samples import percentile
from loadtest.bench.spark.chart import draw_spark
from loadtest.bench.spark.pace import batches_ms, delays_ms
from loadtest.bench.spark.reading import read_operations
from loadtest.bench.spark.session import VALUE_BYTES, fill, one_node, warm_session
from loadtest.bench.spark.sinks import sink_operation
from loadtest.bench.spark.ways import (
    BARE,
    MILENA,
    RATE,
    SparkComparison,
    compare,
    comparisons_text,
    runs_text,
    take_turns,
)

TOPIC = "spark-read"
BATCH_TARGET = 1 / 1.2
"""The target: a small micro-batch takes at most 1.2 times as long as one of a Python source that does nothing."""


@click.command(context_settings={"show_default": True})
@click.option("--records", type=click.IntRange(min=1), default=2_000_000, help="Of the topic.")
@click.option("--partitions", type=click.IntRange(min=1), default=16)
@click.option("--sink-records", type=click.IntRange(min=8), default=400_000, help="To each sink.")
@click.option("--rounds", type=click.IntRange(min=1), default=5)
@click.option("--seconds", type=click.FloatRange(min=1), default=20.0, help="Of paced streams.")
@click.option("--cores", type=click.IntRange(min=1), default=2, help="Of local[n].")
@click.option("--note", default="", help="What else the machine did, for the title.")
@click.option("--out", default="bench-report", type=click.Path(file_okay=False, path_type=Path))
def main(
    *,
    records: int,
    partitions: int,
    sink_records: int,
    rounds: int,
    seconds: float,
    cores: int,
    note: str,
    out: Path,
) -> None:
    """Measure reads, streams and sinks of Spark on a topic."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with one_node(folder) as cluster, warm_session(folder, cores) as spark:
            url = cluster.node(1).url
            fill(url, TOPIC, records, partitions)
            operations = [
                *read_operations(spark, url, TOPIC, records, folder),
                sink_operation(spark, url, folder, records=sink_records),
            ]
            measured = take_turns(operations, rounds)
            # A turn of these streams is long, so three are enough.
            turns = min(rounds, 3)
            batches = batches_ms(spark, url, folder, turns=turns, seconds=seconds / turns)
            delays = delays_ms(spark, url, folder, seconds=seconds)
    comparisons = [*compare(operations, measured), *_batch_comparisons(batches)]
    title = (
        f"{records:,} records of {VALUE_BYTES} B in {partitions} partitions, {sink_records:,} to sinks, "
        f"{rounds} rounds, local[{cores}] on {os.cpu_count()} cores"
    )
    title += f"; {note}" if note else ""
    p50, p99 = (percentile(delays, percent) for percent in (50, 99))
    tables = [runs_text(operations, measured), comparisons_text(comparisons)]
    delay_line = f"from append to the reader behind the sink: p50 {p50:,.0f} ms, p99 {p99:,.0f} ms of {len(delays):,}"
    report = "\n\n".join((title, *tables, _batches_line(batches), delay_line))
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench-spark.txt").write_text(report + "\n", encoding="utf-8")
    figures = {
        "title": title,
        "runs": [asdict(run) for run in measured],
        "comparisons": [asdict(each) for each in comparisons],
        "batches_ms": batches,
        "delays_ms": {"p50": p50, "p99": p99, "records": len(delays)},
    }
    (out / "bench-spark.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    draw_spark(comparisons, delays, out / "bench-spark.png", title=title)
    click.echo(report)
    sys.exit(0 if all(each.is_met for each in comparisons) else 1)


def _batch_comparisons(batches: Sequence[dict[str, float]]) -> list[SparkComparison]:
    return [
        SparkComparison(
            operation="small batch",
            other=other,
            wall=statistics.median(each[other] / each[MILENA] for each in batches),
            cpu=None,
            target=target,
        )
        for other, target in ((BARE, BATCH_TARGET), (RATE, None))
    ]


def _batches_line(batches: Sequence[dict[str, float]]) -> str:
    medians = {way: statistics.median(each[way] for each in batches) for way in batches[0]}
    return "a small batch: " + ", ".join(f"{way} {ms:,.0f} ms" for way, ms in medians.items())


if __name__ == "__main__":
    main()
