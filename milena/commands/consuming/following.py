"""``milena consume --follow`` and ``--group``: prints new records, also of partitions that are added later."""

import asyncio
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import click

from milena.client import Client
from milena.commands.consuming.quorum_watch import quorum_watched
from milena.commands.formats import Layout
from milena.commands.standard_streams import DaemonThread, write_all
from milena.commands.target import EXIT_INTERRUPTED
from milena.reading.cursor import OnOutOfRange
from milena.records import Position, TimestampMs

RECORDS_AT_ONCE = 2_000
"""The most records that are printed before a member of a group may commit them, or give partitions back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """The options that say what to read, and how to print it.

    ``group`` None means no group, ``until`` None means the end, ``records_max`` None means no limit. ``partitions``
    empty means all.
    """

    topic: str
    group: str | None
    session_timeout_ms: int
    """The session timeout of a member of a group, in ms."""
    partitions: tuple[int, ...]
    start: Position
    until: int | TimestampMs | None
    is_following: bool
    is_by_time: bool
    records_max: int | None
    on_out_of_range: OnOutOfRange
    layout: Layout


class InterruptedByUserError(click.exceptions.Exit):
    """The user stopped the command, and it ended in order."""

    def __init__(self) -> None:
        super().__init__(EXIT_INTERRUPTED)


def check_member(*, is_by_time: bool, has_offset: bool, has_partitions: bool) -> None:
    """Refuse options that a member of a group cannot have.

    Raises:
        click.UsageError: one of these options was given.
    """
    if is_by_time:
        raise click.UsageError("--order time needs an end, which --group has not; leave out one")
    if has_partitions:
        raise click.UsageError("with --group, partitions are the group's to share out")
    if has_offset:
        raise click.UsageError(
            "with --group, one offset for all partitions makes no sense: use milena groups reset"
        )


async def print_following(client: Client, options: ConsumeOptions) -> None:
    """Print new records until cancelled: of all partitions, or of those that the group assigns.

    Asking for more records says that the ones before are printed, and may be committed.
    """
    # A missing topic is a mistake here, although a group may wait for one.
    await client.metadata.partition_count(options.topic)
    left = options.records_max
    with DaemonThread("standard output") as output, ended_by_signals():
        async with (
            quorum_watched(client.admin.has_majority) as watch,
            client.consumer(
                options.topic,
                group=options.group,
                session_timeout_ms=options.session_timeout_ms,
                start=options.start,
                on_out_of_range=options.on_out_of_range,
            ) as consumer,
        ):
            while left is None or left > 0:
                most = RECORDS_AT_ONCE if left is None else min(left, RECORDS_AT_ONCE)
                records = await consumer.poll(most)
                data = options.layout.encode(records)
                await output.call(partial(write_all, sys.stdout.fileno(), data))
                watch.on_records()
                if left is not None:
                    left -= len(records)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Cancel the task at Ctrl-C and SIGTERM, so that it leaves its group. A second signal ends the process as usual."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None, "called in a task"
    signals = (signal.SIGINT, signal.SIGTERM) if _is_main_thread() else ()
    is_interrupted = False

    def interrupt() -> None:
        nonlocal is_interrupted
        is_interrupted = True
        for number in signals:
            loop.remove_signal_handler(number)
        task.cancel()

    for number in signals:
        loop.add_signal_handler(number, interrupt)
    try:
        yield
    except asyncio.CancelledError:
        if not is_interrupted:
            raise
        task.uncancel()
        raise InterruptedByUserError from None
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
