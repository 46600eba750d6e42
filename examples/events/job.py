"""Run a job on events as a stream, or as a table of the topics' current records; write to a topic or to files.

A job is two pure functions of DataFrames: records to events (``events.watermark``), and events to rows. This module
does the rest, in the same way for a stream and a table up to the last step. A stream's checkpoint has its offsets and
its open windows. The next run continues there, and does not write again what was written.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from tqdm import tqdm

from examples.events.report import (
    READ,
    WRITTEN,
    EventReport,
    event_report_json,
    event_report_text,
    read_counts,
    written_counts,
)
from examples.events.watermark import dated, in_time
from examples.picture import Panel, save_picture
from milena.commands.output import as_json
from spark_ext.jobs.archiving.log_source import TopicChoice, log_state
from spark_ext.jobs.running.amounts import counted
from spark_ext.jobs.running.cluster import JobCluster
from spark_ext.jobs.running.session import job_session

RECORDS_SCHEMA = "topic string, value binary, timestamp timestamp"
"""The columns of a record that make an event; others are not decoded."""

PICTURED_ROWS_MAX = 20_000
"""The most rows of the target, the latest ones, in a picture; the driver holds them in memory."""

POLL_S = 1
"""How often to read Spark's reports, in s: it keeps those of 100 batches, and makes fewer in a second."""

_PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRun:
    """The source, target and trigger of a run. Exactly one of ``target`` and ``output`` is given.

    ``checkpoint`` is a folder, or None to read the topics once, as a table. If ``is_once``, a stream ends with the
    records that exist when it starts; else it starts a batch every ``interval_s`` seconds.
    """

    cluster: JobCluster
    topics: tuple[str, ...]
    target: str | None
    output: str | None
    checkpoint: str | None
    is_once: bool
    interval_s: int
    late_s: int
    is_loss_accepted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventJob:
    """The functions of a job: ``parse`` adds ``time`` and ``reason`` to records, ``compute`` makes rows from events.

    The values of the columns ``key`` make the key of a row's record, separated by blanks: equal keys stay in order.
    ``panels`` draws rows by the time in their column ``at``; None for a job that draws nothing.
    """

    name: str
    parse: Callable[[DataFrame], DataFrame]
    compute: Callable[[DataFrame], DataFrame]
    key: Sequence[str]
    at: str = "window_start"
    panels: Callable[[Sequence[Row]], tuple[Panel, ...]] | None = None


def run_event_job(
    job: EventJob, run: EventRun, *, is_json: bool, picture: str | None = None
) -> None:
    """Run until the end or an interrupt, print the report, and draw the rows of the target."""
    _check_topics(run)
    spark = job_session(f"milena-{job.name.replace('_', '-')}")
    records = read_records(spark, run)
    if run.checkpoint is None:
        report = write_table(job, run, records)
    else:
        report = follow(start_stream(job, run, records), run, name=job.name)
    if picture is not None:
        rows = target_rows(spark, job, run)
        title = f"{job.name} of {', '.join(run.topics)}: {counted(len(rows), 'row')} of {run.target or run.output}"
        assert job.panels is not None, "a job without a picture has no option that asks for one"
        save_picture(picture, title=title, panels=job.panels(rows))
    click.echo(as_json(event_report_json(report)) if is_json else event_report_text(report))


def target_rows(spark: SparkSession, job: EventJob, run: EventRun) -> list[Row]:
    """Return the latest rows in the target, of this and earlier runs; other records are skipped."""
    schema = job.compute(job.parse(spark.createDataFrame([], RECORDS_SCHEMA))).schema
    if run.target is None:
        rows = spark.read.schema(schema).parquet(_location(run.output))
    else:
        options = {**run.cluster.options(), "subscribe": run.target}
        records = spark.read.format("milena").options(**options).schema("value binary").load()
        text = sf.make_valid_utf8(sf.col("value").cast("string"))
        rows = records.select(sf.from_json(text, schema).alias("row")).select("row.*")
    latest = rows.where(sf.col(job.at).isNotNull()).orderBy(sf.desc(job.at))
    return latest.limit(PICTURED_ROWS_MAX).collect()


def _check_topics(run: EventRun) -> None:
    """Check that the topics exist, before Spark starts; a stream would find out only in its first batch."""
    targets = () if run.target is None else (run.target,)
    log_state(run.cluster, TopicChoice(names=(*run.topics, *targets)))


def read_records(spark: SparkSession, run: EventRun) -> DataFrame:
    """Return the topics' records from the first one on, as a stream or as a table."""
    if not spark.sparkContext.getConf().contains(_PARTITIONS):
        # Spark keeps one state per shuffle partition, and runs a task for each in every batch. Its default is 200. A
        # checkpoint keeps the number that it started with.
        spark.conf.set(_PARTITIONS, spark.sparkContext.defaultParallelism)
    reader = spark.read if run.checkpoint is None else spark.readStream
    options = {
        **run.cluster.options(),
        "subscribe": ",".join(run.topics),
        "startingOffsets": "earliest",
        "failOnDataLoss": str(not run.is_loss_accepted).lower(),
    }
    return reader.format("milena").options(**options).schema(RECORDS_SCHEMA).load()


def rows_of(
    job: EventJob,
    records: DataFrame,
    *,
    late_s: int,
    read: Observation | str = READ,
    written: Observation | str = WRITTEN,
) -> DataFrame:
    """Return the job's rows for records; ``read`` and ``written`` observe the input and the output."""
    events = dated(job.parse(records)).observe(read, *read_counts())
    rows = job.compute(in_time(events, late_s=late_s))
    return rows.observe(written, *written_counts(rows.columns))


def as_records(job: EventJob, rows: DataFrame) -> DataFrame:
    """Return rows as records: JSON objects with a field for each column, even if it is null."""
    return rows.select(
        sf.concat_ws(" ", *job.key).alias("key"),
        sf.to_json(sf.struct("*"), {"ignoreNullFields": "false"}).alias("value"),
    )


def write_table(job: EventJob, run: EventRun, records: DataFrame) -> EventReport:
    """Write the rows of a table; every window is written."""
    read, written = Observation(READ), Observation(WRITTEN)
    rows = rows_of(job, records, late_s=run.late_s, read=read, written=written)
    if run.target is None:
        rows.write.mode("error").parquet(_location(run.output))
    else:
        options = {**run.cluster.options(), "topic": run.target}
        as_records(job, rows).write.format("milena").options(**options).mode("append").save()
    return EventReport().with_counts(read.get, written.get)


def start_stream(job: EventJob, run: EventRun, records: DataFrame) -> StreamingQuery:
    """Start the stream, or continue from the checkpoint."""
    rows = rows_of(job, records, late_s=run.late_s)
    if run.target is None:
        writer = rows.writeStream.format("parquet").option("path", _location(run.output))
    else:
        options = {**run.cluster.options(), "topic": run.target}
        writer = as_records(job, rows).writeStream.format("milena").options(**options)
    writer = writer.queryName(job.name).option("checkpointLocation", _location(run.checkpoint))
    if run.is_once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{run.interval_s} seconds").start()


def follow(query: StreamingQuery, run: EventRun, *, name: str) -> EventReport:
    """Show progress until the query ends; an interrupt ends an endless query.

    Raises:
        StreamingQueryException: the query failed.
    """
    report = EventReport()
    with tqdm(desc=name, unit=" records", disable=None) as bar:
        try:
            while not query.awaitTermination(POLL_S):
                report = report.with_progress(query.recentProgress)
                bar.update(report.records - bar.n)
                bar.set_postfix(written=report.written, watermark=report.watermark)
        except KeyboardInterrupt:
            if run.is_once:
                raise
        finally:
            query.stop()
    return report.with_progress(query.recentProgress)


def _location(path: str | None) -> str:
    """Return a path of this machine, or a URL, in Spark's form."""
    assert path is not None, (
        "the run is to a topic or to files, with a checkpoint if it is a stream"
    )
    return path if "://" in path else f"file://{os.path.abspath(path)}"
