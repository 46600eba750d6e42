"""The job ``alerts``: find windows in which a web site answered too many requests with errors, from its access log.

    python -m examples.alerts --url http://node:8082 --topic access --to alerts --checkpoint DIR
    PYTHONPATH=. spark-submit examples/alerts.py --topic access --to alerts --checkpoint DIR --once

The value of each record is one line of the log (``weblog.access_log``). ``weblog.error_rates`` has the rule for alerts,
``events.watermark`` says when a window ends, and ``events.job`` runs the job.
"""

import sys
from collections.abc import Sequence
from functools import partial

import click

from examples.events.job import EventJob, EventRun, run_event_job
from examples.events.options import WINDOW, event_options
from examples.picture import plot_option
from examples.weblog.access_log import parsed
from examples.weblog.error_rates import AlertRule, alerts_of
from examples.weblog.pictures import alert_panels
from spark_ext.jobs.running.command import run_command


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@event_options
@plot_option
@click.option("--window", "window_s", type=WINDOW, default="5m", show_default=True, metavar="SPAN",
              help="Requests are counted in windows of this length.")  # fmt: skip
@click.option("--rate", "rate_min", type=click.FloatRange(0, 1), default=0.1, show_default=True,
              metavar="SHARE", help="Errors among requests, from which on there is an alert.")  # fmt: skip
@click.option("--min-requests", "requests_min", type=click.IntRange(min=1), default=10,
              show_default=True, metavar="N", help="A window with fewer raises none.")  # fmt: skip
@click.option("--error-status", "status_min", type=click.IntRange(100, 599), default=400,
              show_default=True, metavar="STATUS", help="An error is this status, or one above.")  # fmt: skip
@click.option("--by", type=click.Choice(["site", "path"]), default="site", show_default=True,
              help="Judge a topic as a whole, or each path of it.")  # fmt: skip
def alerts(
    run: EventRun,
    *,
    window_s: int,
    rate_min: float,
    requests_min: int,
    status_min: int,
    by: str,
    picture: str | None,
    is_json: bool,
) -> None:
    """Write an alert for each window in which too many requests ended in an error, from access-log lines.

    Exit codes: 0 done, however many lines could not be read; 1 records were deleted before they were read, 2 the
    cluster or Spark failed, 4 no such topic, 64 wrong options.
    """
    rule = AlertRule(
        window_s=window_s,
        rate_min=rate_min,
        requests_min=requests_min,
        status_min=status_min,
        is_by_path=by == "path",
    )
    job = EventJob(
        name="alerts",
        parse=parsed,
        compute=lambda events: alerts_of(events, rule),
        key=("site", "path"),
        panels=partial(alert_panels, rate_min=rate_min),
    )
    run_event_job(job, run, is_json=is_json, picture=picture)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    return run_command(alerts, "alerts", arguments)


if __name__ == "__main__":
    sys.exit(run())
