"""The job ``audit``: compare an archive with the topic that it was made from, record by record.

    python -m spark_ext.jobs.audit --archive DIR --url http://node:8082
    spark-submit spark_ext/jobs/audit.py --archive DIR --topic orders

``auditing.report`` says which records are compared. ``running.errors`` has the exit codes.
"""

import os
import sys
from collections.abc import Sequence

import click

from milena.commands.output import as_json
from milena.disk.os_files import OsFiles
from spark_ext.jobs.auditing.report import report_json, report_text
from spark_ext.jobs.auditing.run import AuditWanted, run_audit
from spark_ext.jobs.running.cluster import JobCluster, cluster_options
from spark_ext.jobs.running.command import run_command
from spark_ext.jobs.running.errors import EXIT_BAD_DATA
from spark_ext.jobs.running.session import job_session

EXAMPLES_MAX = 10


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--archive", "root", required=True, type=click.Path(file_okay=False), metavar="DIR",
              help="The archive: the --output of the job archive.")  # fmt: skip
@click.option("--topic", metavar="NAME", help="The archived topic.  [default: the only one]")
@cluster_options
@click.option("--examples", "examples_max", default=EXAMPLES_MAX, show_default=True, metavar="N",
              type=click.IntRange(min=0), help="How many differences to print.")  # fmt: skip
@click.option("--json", "is_json", is_flag=True, help="Print the result as JSON.")
def audit(
    root: str, topic: str | None, cluster: JobCluster, examples_max: int, is_json: bool
) -> int:
    """Compare the key, value, headers and time of each record that should be both in an archive and in its topic.

    Exit codes: 0 the same, 1 there are differences, or the manifest is damaged, 2 the cluster or Spark failed, 4 no
    such topic or no archive of it, 64 wrong options.
    """
    wanted = AuditWanted(
        root=os.path.abspath(root), cluster=cluster, topic=topic, examples_max=examples_max
    )
    report = run_audit(OsFiles(), wanted, lambda: job_session("milena-audit"))
    click.echo(as_json(report_json(report)) if is_json else report_text(report))
    return EXIT_BAD_DATA if report.differences else 0


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    return run_command(audit, "audit", arguments)


if __name__ == "__main__":
    sys.exit(run())
