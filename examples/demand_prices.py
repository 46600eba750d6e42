"""The job ``demand_prices``: compute surcharges from the demand and supply of areas, while they occur.

    python -m examples.demand_prices --url http://node:8082 --topic rides --to prices --checkpoint DIR
    PYTHONPATH=. spark-submit examples/demand_prices.py --topic rides --to prices --checkpoint DIR --once

``market.market_events`` describes an event, ``market.surcharges`` a price. ``events.watermark`` says when a window
ends, and ``events.job`` runs the job.
"""

import sys
from collections.abc import Sequence

import click

from examples.events.job import EventJob, EventRun, run_event_job
from examples.events.options import WINDOW, event_options
from examples.market.market_events import market_events
from examples.market.pictures import price_panels
from examples.market.surcharges import PriceRule, surcharges_of
from examples.picture import plot_option
from spark_ext.jobs.running.command import run_command


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@event_options
@plot_option
@click.option("--window", "window_s", type=WINDOW, default="1m", show_default=True, metavar="SPAN",
              help="Demand and supply are summed in windows of this length.")  # fmt: skip
@click.option("--max-surcharge", "percent_max", type=click.IntRange(min=0, max=100_000), default=200,
              show_default=True, metavar="PERCENT", help="No price is above it.")  # fmt: skip
def demand_prices(
    run: EventRun, *, window_s: int, percent_max: int, picture: str | None, is_json: bool
) -> None:
    """Write a surcharge for each area and window, by how much its demand exceeds its supply.

    Exit codes: 0 done, however many records could not be read; 1 records were deleted before they were read, 2 the
    cluster or Spark failed, 4 no such topic, 64 wrong options.
    """
    rule = PriceRule(window_s=window_s, percent_max=percent_max)
    job = EventJob(
        name="demand_prices",
        parse=market_events,
        compute=lambda events: surcharges_of(events, rule),
        key=("area",),
        panels=price_panels,
    )
    run_event_job(job, run, is_json=is_json, picture=picture)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code."""
    return run_command(demand_prices, "demand_prices", arguments)


if __name__ == "__main__":
    sys.exit(run())
