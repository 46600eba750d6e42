"""The job ``sessions``: find the visits to a web site (client, duration, requests), from its access log.

    python -m examples.sessions --url http://node:8082 --topic access --to sessions --checkpoint DIR
    PYTHONPATH=. spark-submit examples/sessions.py --topic access --output DIR --batch

The value of each record is one line of the log (``weblog.access_log``). ``weblog.visits`` describes a session.
``events.watermark`` says when a session ends, and ``events.job`` runs the job.
"""

import sys
from collections.abc import Sequence

import click

from examples.events.job import EventJob, EventRun, run_event_job
from examples.events.options import WINDOW, event_options
from examples.weblog.access_log import parsed
from examples.weblog.visits import sessions_of
from spark_ext.jobs.running.command import run_command


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@event_options
@click.option("--gap", "gap_s", type=WINDOW, default="30m", show_default=True, metavar="SPAN",
              help="A client that asks nothing for so long has left.")  # fmt: skip
def sessions(run: EventRun, *, gap_s: int, is_json: bool) -> None:
    """Write a row for each visit of a client: its start and end, its number of requests, its first and last page.

    Exit codes: 0 done, however many lines could not be read; 1 records were deleted before they were read, 2 the
    cluster or Spark failed, 4 no such topic, 64 wrong options.
    """
    job = EventJob(
        name="sessions",
        parse=parsed,
        compute=lambda events: sessions_of(events, gap_s=gap_s),
        key=("site", "client"),
    )
    run_event_job(job, run, is_json=is_json)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    return run_command(sessions, "sessions", arguments)


if __name__ == "__main__":
    sys.exit(run())
