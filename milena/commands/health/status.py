"""``milena status``: the health of the cluster, once or repeatedly."""

import os
import sys

import click

from milena.cluster.admin import AdminClient
from milena.commands import output
from milena.commands.health.status_watch import watch
from milena.commands.options import JSON, Duration
from milena.commands.target import EXIT_DEGRADED, ClusterTarget
from milena.model.clock import SystemClock

INTERVAL_S = 2.0


@click.command()
@click.option("--watch", "-w", "is_watching", is_flag=True,
              help="Repeat until interrupted, with rates and the lag of groups.")  # fmt: skip
@click.option("--interval", "interval_s", metavar="SECONDS", type=Duration("s", least=0.5, most=3600),
              help="With --watch: the time between two samples.  [default: 2]")  # fmt: skip
@JSON
@click.pass_obj
def status(
    target: ClusterTarget, is_watching: bool, interval_s: float | None, is_json: bool
) -> None:
    """Show nodes, leaders and under-replicated partitions; exit 1 when degraded, 2 when unreachable."""
    if is_watching:
        if is_json:
            raise click.UsageError("--watch is for people; a program asks again: leave out one")
        watch_until_interrupted(target, INTERVAL_S if interval_s is None else interval_s)
        return
    if interval_s is not None:
        raise click.UsageError("--interval is the time between two looks: say --watch, too")
    view = target.cluster()
    health = view.health()
    if is_json:
        click.echo(output.as_json(output.status_json(view, health)))
    else:
        click.echo(output.status_text(view, health))
    if not health.is_healthy:
        raise click.exceptions.Exit(EXIT_DEGRADED)


def watch_until_interrupted(target: ClusterTarget, interval_s: float) -> None:
    """Show looks until interrupted: each in place of the former one, or with a line of dashes between two looks.

    The latter is for a terminal that cannot move the cursor, and for a pipe or a file.
    """
    is_in_place = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def show(text: str) -> None:
        if is_in_place:
            click.clear()
            click.echo(text)
        else:
            click.echo(f"{text}\n---")

    async def work(client: AdminClient) -> None:
        await watch(client, show, SystemClock(), interval_ms=interval_s * 1000)

    try:
        target.run(work)
    except BrokenPipeError:
        # The reader of the pipe has closed it, as in "| head".
        return
