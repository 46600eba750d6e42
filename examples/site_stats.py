"""The job ``site_stats``: hourly statistics of a web site from its access log, read from a topic or from an archive.

    python -m examples.site_stats --url http://node:8082 --topic access --output DIR
    PYTHONPATH=. spark-submit examples/site_stats.py --archive ARCHIVE --output DIR --format csv
    PYTHONPATH=. spark-submit examples/site_stats.py --topic access --to hours --checkpoint DIR

The value of each record is one line of the log (``weblog.access_log``). ``weblog.site_report`` says what is counted,
and in which hour. Unreadable lines are counted and written to ``DIR/quarantine.parquet``, with their offset and the
reason. As a stream, the job writes the same rows, each when its hour is over (``weblog.hours``); it only counts
unreadable lines. ``events.job`` runs the stream.
"""

import os
import sys
from collections.abc import Sequence

import click
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from examples.events.job import EventJob, run_event_job
from examples.events.options import StreamWanted, stream_options
from examples.picture import plot_option, save_picture
from examples.weblog.access_log import parsed
from examples.weblog.hours import hours_of
from examples.weblog.pictures import hour_panels
from examples.weblog.site_report import (
    HOURLY_COLUMNS,
    HOURLY_SCHEMA,
    SiteReport,
    report_json,
    report_text,
    site_report,
    table_row,
)
from milena.commands.output import as_json
from spark_ext.jobs.archiving.log_source import TopicChoice, log_state, read_ranges
from spark_ext.jobs.archiving.manifest import Manifest
from spark_ext.jobs.archiving.plan import make_plan
from spark_ext.jobs.archiving.reader import SCHEMA, read_archive
from spark_ext.jobs.running.amounts import counted
from spark_ext.jobs.running.cluster import JobCluster, cluster_options
from spark_ext.jobs.running.command import run_command
from spark_ext.jobs.running.session import job_session

FORMATS = ("parquet", "csv", "json")
TOP = 10
HOURS_SHOWN = 168
"""The default number of hours to print: a week."""

QUARANTINE = ("topic", "partition", "offset", "timestamp", "reason", "value")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@cluster_options
@click.option("--topic", "topics", multiple=True, metavar="NAME",
              help="A topic, or one of the archive; may be repeated.")  # fmt: skip
@click.option("--archive", "archive_dir", type=click.Path(file_okay=False), metavar="DIR",
              help="Read what the job archive wrote instead of the cluster.")  # fmt: skip
@click.option("--output", type=click.Path(file_okay=False), metavar="DIR",
              help="Write tables there, in place of those of an earlier run.")  # fmt: skip
@click.option("--format", "formats", multiple=True, type=click.Choice(FORMATS),
              default=(FORMATS[0],), show_default=True, help="Of the tables; may be repeated.")  # fmt: skip
@click.option("--top", default=TOP, show_default=True, type=click.IntRange(min=1), metavar="N",
              help="How many paths to name.")  # fmt: skip
@click.option("--hours-shown", default=HOURS_SHOWN, show_default=True, type=click.IntRange(min=1),
              metavar="N", help="How many hours to print; tables and JSON have all.")  # fmt: skip
@stream_options
@plot_option
@click.option("--json", "is_json", is_flag=True, help="For programs.")
def site_stats(
    *,
    cluster: JobCluster,
    topics: tuple[str, ...],
    archive_dir: str | None,
    output: str | None,
    formats: tuple[str, ...],
    top: int,
    hours_shown: int,
    stream: StreamWanted,
    picture: str | None,
    is_json: bool,
) -> None:
    """Count requests, bytes, clients, status classes and paths by hour, from access-log lines.

    Exit codes: 0 done, however many lines could not be read; 1 the archive is damaged, or records were deleted before
    they were read, 2 the cluster or Spark failed, 4 no such topic or no archive, 64 wrong options.
    """
    if archive_dir is None and not topics:
        raise click.UsageError("say what to read: --topic, or --archive")
    if stream.checkpoint is not None:
        if archive_dir is not None:
            raise click.UsageError("--checkpoint is of a stream, of --topic: an archive is none")
        job = EventJob(
            name="site_stats",
            parse=parsed,
            compute=lambda events: hours_of(events, top=top),
            key=("hour",),
            at="hour",
            panels=hour_panels,
        )
        run = stream.run(cluster, topics, output)
        run_event_job(job, run, is_json=is_json, picture=picture)
        return
    if stream.target is not None or stream.is_once:
        raise click.UsageError("--to and --once are of a stream: say --checkpoint, too")
    spark = job_session("milena-site-stats")
    if archive_dir is None:
        records = read_topics(spark, cluster, topics)
    else:
        records = read_archive(spark, os.path.abspath(archive_dir), topics)
    directory = None if output is None else os.path.abspath(output)
    report = run_site_stats(spark, records, directory, formats=formats, top=top)
    if picture is not None:
        row = Row(*HOURLY_COLUMNS)
        rows = [row(*table_row(counts)) for counts in report.hours]
        save_picture(
            picture, title=f"site_stats: {counted(len(rows), 'hour')}", panels=hour_panels(rows)
        )
    text = as_json(report_json(report)) if is_json else report_text(report, hours_shown=hours_shown)
    click.echo(text)


def read_topics(spark: SparkSession, cluster: JobCluster, topics: tuple[str, ...]) -> DataFrame:
    """Return all records that can be read from these topics now."""
    state = log_state(cluster, TopicChoice(names=topics))
    ranges = make_plan(Manifest(), state.partitions).to_read
    return read_ranges(spark, cluster, ranges) if ranges else spark.createDataFrame([], SCHEMA)


def run_site_stats(
    spark: SparkSession,
    records: DataFrame,
    directory: str | None,
    *,
    formats: Sequence[str] = FORMATS[:1],
    top: int = TOP,
) -> SiteReport:
    """Compute the statistics, and write the tables below ``directory`` if it is given."""
    lines = parsed(records).select(
        *("topic", "partition", "offset", "timestamp", "reason"),
        # Drop the text of readable lines: it has most of the bytes, and is not needed any more.
        sf.when(sf.col("reason").isNotNull(), sf.col("value")).alias("value"),
        *("client", "time", "path", "status", "bytes"),
    )
    # Keep the lines, so that the source is read once. A second read costs more than the disk, and could get more
    # records.
    lines.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        report = site_report(lines, top=top)
        if directory is not None:
            _write(spark, report, directory, formats)
            quarantined = lines.where(sf.col("reason").isNotNull()).select(*QUARANTINE)
            quarantined.write.mode("overwrite").parquet(f"file://{directory}/quarantine.parquet")
    finally:
        lines.unpersist()
    return report


def _write(spark: SparkSession, report: SiteReport, directory: str, formats: Sequence[str]) -> None:
    overall = spark.createDataFrame([table_row(report.overall)], HOURLY_SCHEMA).drop("hour")
    hourly = spark.createDataFrame([table_row(c) for c in report.hours], HOURLY_SCHEMA)
    for name, rows in (("hourly", hourly), ("overall", overall)):
        for file_format in formats:
            whole = rows.coalesce(1)
            if file_format == "csv":
                # CSV has no lists.
                whole = whole.withColumns(
                    {c: sf.to_json(c) for c in ("top_paths", "top_error_paths")}
                )
            writer = whole.write.mode("overwrite").format(file_format)
            if file_format == "csv":
                writer = writer.option("header", "true").option("escape", '"')
            writer.save(f"file://{directory}/{name}.{file_format}")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    return run_command(site_stats, "site_stats", arguments)


if __name__ == "__main__":
    sys.exit(run())
