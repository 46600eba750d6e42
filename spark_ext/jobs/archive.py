"""The job ``archive``: write the records of topics to Parquet files. Each run adds the new records exactly once.

    python -m spark_ext.jobs.archive --url http://node:8082 --topic orders --output DIR
    spark-submit spark_ext/jobs/archive.py --url http://node:8082 --topic orders --output DIR --follow
    python -m spark_ext.jobs.archive --verify --output DIR

``archiving.directory`` describes the files of an archive, and when a record counts as archived. ``running.errors`` has
the exit codes. ``DIR`` must be the same file system for the driver and all executors.
"""

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from secrets import token_hex
from threading import Event

import click
from tqdm import tqdm

from milena.commands.output import as_json
from milena.disk.os_files import OsFiles
from spark_ext.jobs.archiving.log_source import CODECS, SparkLogSource, TopicChoice
from spark_ext.jobs.archiving.run import (
    RunSummary,
    follow_archive,
    joined,
    run_archive,
    summary_json,
    summary_text,
)
from spark_ext.jobs.archiving.verify import verdict_json, verdict_text, verify_archive
from spark_ext.jobs.running.cluster import JobCluster, cluster_options
from spark_ext.jobs.running.command import run_command
from spark_ext.jobs.running.errors import EXIT_BAD_DATA
from spark_ext.jobs.running.session import job_session
from spark_ext.jobs.running.spans import SPAN

RECORDS_PER_FILE = 1_000_000


def _pattern(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return value if value is None else re.compile(value).pattern
    except re.error as error:
        raise click.BadParameter(f"{value!r}: {error}", ctx=ctx, param=parameter) from error


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@cluster_options
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="May be repeated.")
@click.option("--topic-pattern", "pattern", callback=_pattern, metavar="REGEX",
              help="Archive every topic whose whole name matches.")  # fmt: skip
@click.option("--output", required=True, type=click.Path(file_okay=False), metavar="DIR",
              help="The archive: a new or empty directory, or that of earlier runs.")  # fmt: skip
@click.option("--max-records", "records_max", type=click.IntRange(min=1), metavar="N",
              help="Archive at most this many in a commit, shared fairly among partitions.")  # fmt: skip
@click.option("--records-per-file", default=RECORDS_PER_FILE, show_default=True, metavar="N",
              type=click.IntRange(min=1), help="The most records in one file.")  # fmt: skip
@click.option("--compression", type=click.Choice(CODECS), default=CODECS[0], show_default=True,
              help="The codec of the Parquet files.")  # fmt: skip
@click.option("--follow", "is_following", is_flag=True,
              help="Continue until interrupted, and commit new records at each --interval.")  # fmt: skip
@click.option("--interval", "interval_s", type=SPAN, default="1m", show_default=True,
              metavar="SPAN", help="How often --follow looks for new records.")  # fmt: skip
@click.option("--accept-data-loss", "is_loss_accepted", is_flag=True,
              help="Continue if records were deleted before they could be archived.")  # fmt: skip
@click.option("--verify", "is_verifying", is_flag=True,
              help="Archive nothing; compare every file with the manifest.")  # fmt: skip
@click.option("--json", "is_json", is_flag=True, help="Print the result as JSON.")
def archive(
    *,
    cluster: JobCluster,
    topics: tuple[str, ...],
    pattern: str | None,
    output: str,
    records_max: int | None,
    records_per_file: int,
    compression: str,
    is_following: bool,
    interval_s: int,
    is_loss_accepted: bool,
    is_verifying: bool,
    is_json: bool,
) -> int:
    """Archive topics as Parquet: add the records that were written since the last run, each exactly once.

    Exit codes: 0 done (verify: sound), 1 records are lost or the archive is damaged, 2 the cluster or Spark failed,
    3 another run is archiving to DIR, 4 no such topic or no archive, 64 wrong options.
    """
    root = os.path.abspath(output)
    if is_verifying and is_following:
        raise click.UsageError("--follow archives, --verify does not: say one of them")
    if is_verifying:
        return _verify(root, is_json=is_json)
    if not topics and pattern is None:
        raise click.UsageError("say what to archive: --topic or --topic-pattern")
    source = SparkLogSource(
        session=cache(lambda: job_session("milena-archive")),
        cluster=cluster,
        topics=TopicChoice(names=topics, pattern=pattern),
        compression=compression,
        records_per_file=records_per_file,
    )
    if is_following:
        summary = _follow(root, source, interval_s, records_max, is_loss_accepted=is_loss_accepted)
    else:
        summary = run_archive(
            OsFiles(),
            root,
            source,
            run_id=token_hex(8),
            records_max=records_max,
            is_loss_accepted=is_loss_accepted,
        )
    click.echo(as_json(summary_json(summary)) if is_json else summary_text(summary))
    return 0


def _follow(
    root: str,
    source: SparkLogSource,
    interval_s: int,
    records_max: int | None,
    *,
    is_loss_accepted: bool,
) -> RunSummary:
    """Archive until interrupted; return the summary of all commits."""
    never = Event()
    total = RunSummary(commit=0, partitions=(), losses=(), leftovers=())
    with tqdm(desc="archive", unit=" records", disable=None) as bar:

        def add(summary: RunSummary) -> None:
            nonlocal total
            total = joined(total, summary) if total.commit else summary
            bar.update(summary.records)

        # An interrupt is safe at any time: a commit is in the archive as a whole, or not at all.
        with suppress(KeyboardInterrupt):
            follow_archive(
                OsFiles(),
                root,
                source,
                run_id=token_hex(8),
                is_over=lambda: never.wait(interval_s),
                on_commit=add,
                records_max=records_max,
                is_loss_accepted=is_loss_accepted,
            )
    return total


def _verify(root: str, *, is_json: bool) -> int:
    with tqdm(desc="verify", unit=" files", disable=None) as bar:
        verdict = verify_archive(OsFiles(), root, on_file=lambda _: bar.update() and None)
    click.echo(as_json(verdict_json(verdict)) if is_json else verdict_text(verdict))
    return 0 if verdict.is_good else EXIT_BAD_DATA


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    return run_command(archive, "archive", arguments)


if __name__ == "__main__":
    sys.exit(run())
