"""Options of the command line that all jobs on events have."""

import re
from collections.abc import Callable
from functools import wraps

import click

from spark_ext.jobs.events.job import EventRun
from spark_ext.jobs.running.cluster import JobCluster, cluster_options

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class SpanType(click.ParamType[int]):
    """A span of time such as ``30s``, ``5m``, ``1h`` or ``1d``; its value is seconds."""

    name = "span"

    def __init__(self, *, minimum_s: int = 0) -> None:
        self._minimum_s = minimum_s

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Seconds."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,6})([smhd])", value)
        seconds = None if found is None else int(found[1]) * _SECONDS[found[2]]
        if seconds is None or seconds < self._minimum_s:
            self.fail(f"{value!r} is no span of time such as 30s, 5m, 1h or 1d", param, ctx)
        return seconds


SPAN, WINDOW = SpanType(), SpanType(minimum_s=1)

_OPTIONS = (
    click.option("--topic", "topics", multiple=True, required=True, metavar="NAME",
                 help="Read it, from its first record on; may be repeated."),
    click.option("--to", "target", metavar="NAME", help="The topic to write to; it has to be there."),
    click.option("--output", type=click.Path(file_okay=False), metavar="DIR",
                 help="Write Parquet files there instead."),
    click.option("--checkpoint", type=click.Path(file_okay=False), metavar="DIR",
                 help="Where the stream stands: another run goes on there. One for each job and target."),
    click.option("--once", "is_once", is_flag=True,
                 help="End with what is there when the job starts, instead of going on."),
    click.option("--interval", "interval_s", type=SPAN, default="10s", show_default=True,
                 metavar="SPAN", help="How often to look for new records."),
    click.option("--batch", "is_batch", is_flag=True,
                 help="No stream: all that is there now, every window as if over. Another run writes it again."),
    click.option("--late", "late_s", type=SPAN, default="10m", show_default=True, metavar="SPAN",
                 help="How much older than the latest event one may be, and count."),
    click.option("--json", "is_json", is_flag=True, help="For programs."),
)  # fmt: skip


def event_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options; it gets them as its first argument, an ``EventRun``, and ``is_json``."""

    @wraps(function)
    def command(
        *,
        cluster: JobCluster,
        topics: tuple[str, ...],
        target: str | None,
        output: str | None,
        checkpoint: str | None,
        is_batch: bool,
        is_once: bool,
        interval_s: int,
        late_s: int,
        **others: object,
    ) -> None:
        if (target is None) == (output is None):
            raise click.UsageError("say where to write: --to a topic, or --output")
        if (checkpoint is None) != is_batch:
            raise click.UsageError("say how to run: --checkpoint for a stream, or --batch")
        if is_batch and is_once:
            raise click.UsageError("--once is for streams: a batch ends anyway")
        if target in topics:
            raise click.UsageError(f"topic {target} cannot be read and written by one job")
        run = EventRun(
            cluster=cluster,
            topics=tuple(dict.fromkeys(topics)),
            target=target,
            output=output,
            checkpoint=checkpoint,
            is_once=is_once,
            interval_s=interval_s,
            late_s=late_s,
        )
        function(run, **others)

    for option in reversed(_OPTIONS):
        command = option(command)
    return cluster_options(command)
