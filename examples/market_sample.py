"""Generate demand and supply for the job ``demand_prices``, as JSON lines on standard output.

    python -m examples.market_sample --events 10000 | milena produce rides -

The same seed generates the same events. The demand of each area rises and falls with its own phase. Events come a
little out of order, and a few come after their window has closed.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from random import Random

import click

from spark_ext.jobs.running.command import run_command

AREAS = ("centre", "harbour", "north", "station", "university")
TIDE_S = 1_800
"""The period in which the demand of an area rises and falls, in s."""
DISORDER_S = 20
"""How much older an event may be than the one before it, in s."""
LATE_S = 3_600
LATE_SHARE = 0.005


def market_sample(count: int, *, seed: int, start: datetime, per_second: float) -> Iterator[str]:
    """Yield ``count`` lines, the first at about ``start``, a time with its zone."""
    chance = Random(seed)
    for number in range(count):
        passed_s = number / per_second
        area = chance.randrange(len(AREAS))
        tide = math.sin(2 * math.pi * (passed_s / TIDE_S + area / len(AREAS)))
        is_demand = chance.random() < 0.5 + 0.3 * tide
        is_late = chance.random() < LATE_SHARE
        behind_s = LATE_S if is_late else chance.uniform(0, DISORDER_S)
        time = start + timedelta(seconds=passed_s - behind_s)
        event = {
            "kind": "demand" if is_demand else "supply",
            "area": AREAS[area],
            "time": time.astimezone(UTC).isoformat(timespec="milliseconds"),
            "count": chance.choice((1, 1, 1, 2, 3)),
        }
        yield json.dumps(event)


@click.command("market_sample", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--events", "count", type=click.IntRange(1, 100_000_000), default=10_000,
              show_default=True, metavar="N", help="How many.")  # fmt: skip
@click.option(
    "--seed", type=int, default=1, show_default=True, metavar="N", help="The same makes the same."
)
@click.option("--start", type=click.DateTime(["%Y-%m-%dT%H:%M:%SZ"]), metavar="TIME",
              help="UTC, as 2026-01-31T08:00:00Z; default: so that the last event is of now.")  # fmt: skip
@click.option("--per-second", type=click.FloatRange(0.001, 1e6), default=10, show_default=True,
              metavar="N", help="Events in a second of their own time.")  # fmt: skip
def command(count: int, *, seed: int, start: datetime | None, per_second: float) -> None:
    """Print generated events of demand and supply, one JSON object per line."""
    length = timedelta(seconds=count / per_second)
    begin = datetime.now(UTC) - length if start is None else start.replace(tzinfo=UTC)
    for line in market_sample(count, seed=seed, start=begin, per_second=per_second):
        click.echo(line)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    return run_command(command, "market_sample", arguments)


if __name__ == "__main__":
    sys.exit(run())
