"""The job ``replay``: write an archive back to a topic, each record once, even if processes die.

    python -m spark_ext.jobs.replay --archive DIR --url http://other:8082 --name restore
    spark-submit spark_ext/jobs/replay.py --archive DIR --topic orders --to orders-again --name again

``replaying.run`` describes how a partition is written, ``replaying.target`` the state that the target cluster keeps
about a replay. ``running.errors`` has the exit codes.
"""

import os
import re
import sys
from collections.abc import Sequence

import click
from tqdm import tqdm

from milena.commands.options import Parsed, moment
from milena.commands.output import as_json
from milena.disk.os_files import OsFiles
from spark_ext.jobs.replaying.plan import ReplayFilter, parse_partitions
from spark_ext.jobs.replaying.report import report_json, report_text
from spark_ext.jobs.replaying.run import ReplayWanted, run_replay
from spark_ext.jobs.running.cluster import JobCluster, cluster_options
from spark_ext.jobs.running.command import run_command
from spark_ext.jobs.running.session import job_session

_NAME = re.compile(r"[A-Za-z0-9._-]{1,150}")


def _name(ctx: click.Context, parameter: click.Parameter, text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise click.BadParameter(
            f"{text!r} is not a name: use 1 to 150 letters, digits, dots, dashes and underscores",
            ctx=ctx,
            param=parameter,
        )
    return text


def _time(text: str) -> int:
    if text.startswith("-"):
        raise ValueError(
            f"{text} is another time for each run: write one that stays, such as 2026-01-31T12:00:00Z"
        )
    return moment(text)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--archive", "root", required=True, type=click.Path(file_okay=False), metavar="DIR",
              help="The archive: the --output of the job archive.")  # fmt: skip
@click.option("--topic", metavar="NAME", help="The archived topic.  [default: the only one]")
@click.option("--topic-id", metavar="ID",
              help="The topic's id, if the archive has several topics of this name.")  # fmt: skip
@cluster_options
@click.option("--to", metavar="NAME",
              help="The existing topic to write to.  [default: of the same name]")  # fmt: skip
@click.option("--name", required=True, callback=_name, metavar="NAME",
              help="The replay's name. A run with the same name continues the replay.")  # fmt: skip
@click.option("--from", "from_ms", type=Parsed(_time), metavar="TIME",
              help="Write only records of this time or later: ISO-8601, or ms since 1970.")  # fmt: skip
@click.option("--until", "until_ms", type=Parsed(_time), metavar="TIME",
              help="Write only records before this time.")  # fmt: skip
@click.option("--partitions", type=Parsed(parse_partitions), metavar="LIST",
              help="Write only these archived partitions, such as 0,2,5-7.")  # fmt: skip
@click.option("--by-key", "is_by_key", is_flag=True,
              help="Choose partitions by key, instead of keeping the archived ones.")  # fmt: skip
@click.option("--json", "is_json", is_flag=True, help="Print the result as JSON.")
def replay(
    *,
    root: str,
    topic: str | None,
    topic_id: str | None,
    cluster: JobCluster,
    to: str | None,
    name: str,
    from_ms: int | None,
    until_ms: int | None,
    partitions: tuple[int, ...] | None,
    is_by_key: bool,
    is_json: bool,
) -> None:
    """Write an archived topic back to a topic: each record once, with key, value, headers and time.

    Exit codes: 0 done, 1 the archive is damaged, 2 the cluster or Spark failed, 4 the archive, the topic or the name
    do not allow it, 64 wrong options.
    """
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        raise click.UsageError("--from has to be before --until")
    wanted = ReplayWanted(
        root=os.path.abspath(root),
        cluster=cluster,
        name=name,
        topic=topic,
        topic_id=topic_id,
        to=to,
        chosen=ReplayFilter(from_ms=from_ms, until_ms=until_ms, partitions=partitions),
        is_by_key=is_by_key,
    )
    with tqdm(desc="replay", unit=" records", disable=None) as bar:
        report = run_replay(
            OsFiles(),
            wanted,
            lambda: job_session("milena-replay"),
            on_records=lambda count: bar.update(count) and None,
        )
    click.echo(as_json(report_json(report)) if is_json else report_text(report))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    return run_command(replay, "replay", arguments)


if __name__ == "__main__":
    sys.exit(run())
