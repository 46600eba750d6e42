"""Command-line options of jobs on events: those of a stream, and those that all jobs have."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps

import click

from examples.events.job import EventRun
from milena.commands.options import Parsed
from spark_ext.jobs.running.cluster import JobCluster, cluster_options
from spark_ext.jobs.running.spans import SPAN, parse_span

WINDOW = Parsed(partial(parse_span, minimum_s=1))
"""The type of an option for the length of a window, which may not be empty."""

_STREAM = (
    click.option("--to", "target", metavar="NAME", help="The topic to write to; it has to be there."),
    click.option("--checkpoint", type=click.Path(file_okay=False), metavar="DIR",
                 help="Where the stream stands: another run goes on there. One for each job and target."),
    click.option("--once", "is_once", is_flag=True,
                 help="End with what is there when the job starts, instead of going on."),
    click.option("--interval", "interval_s", type=SPAN, default="10s", show_default=True,
                 metavar="SPAN", help="How often to look for new records."),
    click.option("--late", "late_s", type=SPAN, default="10m", show_default=True, metavar="SPAN",
                 help="How much older than the latest event one may be, and count."),
    click.option("--accept-data-loss", "is_loss_accepted", is_flag=True,
                 help="Go on when records were deleted before they could be read."),
)  # fmt: skip

_OPTIONS = (
    click.option("--topic", "topics", multiple=True, required=True, metavar="NAME",
                 help="Read it, from its first record on; may be repeated."),
    click.option("--output", type=click.Path(file_okay=False), metavar="DIR",
                 help="Write Parquet files there instead of to a topic."),
    click.option("--batch", "is_batch", is_flag=True,
                 help="No stream: all that is there now, every window as if over. Another run writes it again."),
    click.option("--json", "is_json", is_flag=True, help="For programs."),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWanted:
    """The stream options of a command line; without them the job reads a table."""

    target: str | None
    checkpoint: str | None
    is_once: bool
    interval_s: int
    late_s: int
    is_loss_accepted: bool

    def run(self, cluster: JobCluster, topics: tuple[str, ...], output: str | None) -> EventRun:
        """Return a run that reads these topics and writes to a topic or to ``output``.

        Raises:
            click.UsageError: there is no target, or two, or the target is also a source.
        """
        if (self.target is None) == (output is None):
            raise click.UsageError("say where to write: --to a topic, or --output")
        if self.target in topics:
            raise click.UsageError(f"topic {self.target} cannot be read and written by one job")
        return EventRun(
            cluster=cluster,
            topics=tuple(dict.fromkeys(topics)),
            target=self.target,
            output=output,
            checkpoint=self.checkpoint,
            is_once=self.is_once,
            interval_s=self.interval_s,
            late_s=self.late_s,
            is_loss_accepted=self.is_loss_accepted,
        )


def stream_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a stream; it gets them as ``stream``, a ``StreamWanted``."""

    @wraps(function)
    def command(
        *,
        target: str | None,
        checkpoint: str | None,
        is_once: bool,
        interval_s: int,
        late_s: int,
        is_loss_accepted: bool,
        **others: object,
    ) -> None:
        wanted = StreamWanted(
            target=target,
            checkpoint=checkpoint,
            is_once=is_once,
            interval_s=interval_s,
            late_s=late_s,
            is_loss_accepted=is_loss_accepted,
        )
        function(stream=wanted, **others)

    for option in reversed(_STREAM):
        command = option(command)
    return command


def event_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options; it gets them as its first argument, an ``EventRun``, and ``is_json``."""

    @wraps(function)
    def command(
        *,
        cluster: JobCluster,
        topics: tuple[str, ...],
        output: str | None,
        is_batch: bool,
        stream: StreamWanted,
        **others: object,
    ) -> None:
        run = stream.run(cluster, topics, output)
        if (stream.checkpoint is None) != is_batch:
            raise click.UsageError("say how to run: --checkpoint for a stream, or --batch")
        if is_batch and stream.is_once:
            raise click.UsageError("--once is for streams: a batch ends anyway")
        function(run, **others)

    whole = stream_options(command)
    for option in reversed(_OPTIONS):
        whole = option(whole)
    return cluster_options(whole)
