"""Load a real cluster, kill a leader halfway, and check every acknowledged record.

    python -m loadtest [--run-time 60s] [--users 24] [--url URL]... [--web] [-- LOCUST OPTIONS]

Exit codes: 0 nothing is wrong; 1 a record is lost, doubled, reordered or damaged; 2 the run proves nothing.
"""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path
from secrets import token_hex

import click

from loadtest.cluster.access import credentials_of
from loadtest.cluster.local_cluster import ClusterError
from loadtest.judging.ledger import LedgerError
from loadtest.judging.plants import Plant
from loadtest.run import EXIT_FAILED, LoadError, run
from loadtest.settings import Settings
from milena.cluster.credentials import ANONYMOUS
from milena.commands.options import FiniteRange
from milena.errors import BadCredentialsError, ClientError

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def duration(text: str) -> float:
    """Return the seconds of a duration in locust's format: 90, 90s, 5m, 1h30m."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh]?)", text)
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if "".join(map("".join, parts)) != text or seconds <= 0:
        raise click.BadParameter(f"{text!r} is not a duration like 90s, 5m or 1h30m")
    return seconds


@click.command(context_settings={"show_default": True})
@click.option("--url", "urls", multiple=True,
              help="Load the cluster of this node, and start none; several spread the users.")  # fmt: skip
@click.option("--topic", help="Topic to write, created if it is missing.  [default: a new one]")
@click.option("--partitions", type=click.IntRange(min=1), default=6)
@click.option("--replication-factor", type=click.IntRange(min=1), default=3)
@click.option("--run-time", "run_time_s", type=duration, default="60s", metavar="DURATION")
@click.option("--users", type=click.IntRange(min=1), default=24, help="Concurrent users.")
@click.option(
    "--spawn-rate",
    type=FiniteRange(min=0.1),
    default=24.0,
    help="Users that start each second.",
)
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all")
@click.option("--record-bytes", type=click.IntRange(min=1), default=100, help="Size of a value.")
@click.option(
    "--batch-records", type=click.IntRange(min=1), default=100, help="Records of a batch request."
)
@click.option(
    "--keys", type=click.IntRange(min=0), default=1000, help="Number of different keys; 0: no keys."
)
@click.option("--think-ms", type=FiniteRange(min=0), default=0.0,
              help="Pause of a writer between two requests.")  # fmt: skip
@click.option("--seed", type=int, default=1, help="Of keys and padding.")
@click.option("--kill/--no-kill", "is_kill", default=True,
              help="Kill a leader with -9 in the middle; only of a cluster that this started.")  # fmt: skip
@click.option(
    "--down",
    "down_s",
    type=duration,
    default="3s",
    metavar="DURATION",
    help="When it is started again.",
)
@click.option("--plant", type=click.Choice([p.value for p in Plant]),
              help="Alter what is read back, to see that the judge finds it.")  # fmt: skip
@click.option(
    "--web", "is_web", is_flag=True, help="Start tests from locust's web page; none is killed."
)
@click.option("--web-port", type=click.IntRange(1, 65535), default=8089)
@click.option("--out", "directory", type=click.Path(path_type=Path, file_okay=False),
              default=Path("loadtest-report"), help="Folder of the report.")  # fmt: skip
@click.option("--judge", "judged", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Load nothing: judge the ledgers in this folder against the cluster at --url.")  # fmt: skip
@click.argument("locust_options", nargs=-1, type=click.UNPROCESSED)
def main(topic: str | None, plant: str | None, **options: object) -> None:
    """Load a cluster, kill a leader, read everything back, and judge the result.

    For a running cluster at --url, the credentials come from MILENA_TOKEN_FILE, MILENA_USER and related variables.

    LOCUST_OPTIONS after ``--`` go to locust: user classes, --config-users, --processes, ...
    """
    if options["judged"] and not options["urls"]:
        raise click.UsageError("--judge needs --url: the cluster that the ledgers are about")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        # A cluster that the test starts has no access control.
        credentials = credentials_of(os.environ) if options["urls"] else ANONYMOUS
    except BadCredentialsError as error:
        raise click.UsageError(error.message) from error
    settings = Settings(
        credentials=credentials,
        topic=topic or f"loadtest-{token_hex(4)}",
        plant=None if plant is None else Plant(plant),
        **options,  # type: ignore[arg-type]  # click has made each option what its type says
    )
    try:
        code = asyncio.run(run(settings))
    except* (LedgerError, ClusterError, ClientError, LoadError, OSError) as group:
        print(f"loadtest: {first_of(group)}", file=sys.stderr)
        code = EXIT_FAILED
    except* (KeyboardInterrupt, asyncio.CancelledError):
        code = 128 + signal.SIGINT
    sys.exit(code)


def first_of(error: BaseException) -> BaseException:
    """Return the first exception that is not a group, in nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    main()
