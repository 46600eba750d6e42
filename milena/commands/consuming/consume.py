"""``milena consume``: prints the records of a topic on standard output."""

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial

import click

from milena.client import Client
from milena.commands.consuming.following import ConsumeOptions, check_member, print_following
from milena.commands.consuming.quorum_watch import quorum_watched
from milena.commands.formats import Format, Layout, parse_template
from milena.commands.options import (
    MOMENT,
    NAME,
    SEPARATOR,
    Amount,
    Duration,
    Number,
    Parsed,
    moment,
)
from milena.commands.standard_streams import DaemonThread, write_all
from milena.commands.target import ClusterTarget, no_such_partition
from milena.commands.times import parse_whole
from milena.consuming.options import ConsumerOptions, check_group
from milena.reading.cursor import OnOutOfRange
from milena.reading.reader import FETCH_BYTES, PREFETCH_CHUNKS, PartitionReader
from milena.reading.topic_order import as_they_come, by_time, one_after_the_other
from milena.records import ConsumedRecord, LastN, Position, StartAt, TimestampMs

HELD_BYTES = 64 << 20
"""The most bytes that all readers hold together. With many partitions, each fetches less, and less far ahead."""
FETCH_BYTES_MIN = 64 << 10
FEW_READERS = 16
_SESSION_MS = ConsumerOptions().session_timeout_ms


def _until(text: str) -> int | TimestampMs:
    is_offset = text.isascii() and text.isdigit()
    return parse_whole(text) if is_offset else TimestampMs(moment(text))


def _layout(text: str) -> Layout:
    if text in {form.value for form in Format}:
        return Layout(format=Format(text))
    template = parse_template(text)
    if len(template) == 1:
        known = ", ".join(form.value for form in Format)
        raise ValueError(f"{text!r} is not a format: use {known}, or a template such as '%k %v'")
    return Layout(template=template)


@click.command()
@click.argument("topic", type=NAME)
@click.option("--group", "-g", metavar="NAME",
              help="Join this consumer group, and follow until interrupted.")  # fmt: skip
@click.option("--session-timeout", "session_s", type=Duration("s", least=1, most=300), metavar="SECONDS",
              help="With --group: the time after a crash until others get its partitions.  [default: 45]")  # fmt: skip
@click.option("--from-beginning", is_flag=True, help="Start with the first record that is stored.")
@click.option("--offset", type=Number(min=0), metavar="N", help="Start at this offset.")
@click.option("--time", "time_ms", type=MOMENT, metavar="TIME",
              help="Start with the first record at or after this time: ISO-8601, ms since 1970, or -1h.")  # fmt: skip
@click.option("--last", type=Amount(min=0), metavar="N",
              help="Start N records before the end of each partition.")  # fmt: skip
@click.option("--until", type=Parsed(_until), metavar="N|TIME",
              help="Stop before this offset, or before the first record at or after this time.")  # fmt: skip
@click.option("--follow", "-f", "is_following", is_flag=True,
              help="Print records as they arrive, until interrupted.")  # fmt: skip
@click.option("--partition", "-p", "partitions", type=Number(min=0), multiple=True,
              metavar="N", help="Only this partition; may be repeated.  [default: all]")  # fmt: skip
@click.option("--max-records", "-n", "records_max", type=Amount(min=0), metavar="N",
              help="Stop after N records.")  # fmt: skip
@click.option("--order", type=click.Choice(["partition", "time"]), default="partition",
              show_default=True, help="Print one partition after the other, or merge them by timestamp.")  # fmt: skip
@click.option("--format", "layout", type=Parsed(_layout), default=Format.VALUE.value,
              show_default=True, metavar="value|key-value|json|raw|TEMPLATE",
              help="The parts of a record to print. In a template: %k key, %v value, %t topic, %p partition, "
                   "%o offset, %T time in ms, %h headers.")  # fmt: skip
@click.option("--separator", "record_end", type=SEPARATOR, default=r"\n", show_default=True,
              metavar="TEXT", help=r"The end of each record; escapes such as \0 work.")  # fmt: skip
@click.option("--key-separator", type=SEPARATOR, default=r"\t", show_default=True,
              metavar="TEXT", help="The text between key and value.")  # fmt: skip
@click.option("--null-marker", default="null", show_default=True, metavar="TEXT",
              help="The text for a null key or value.")  # fmt: skip
@click.option("--on-out-of-range", type=click.Choice([p.value for p in OnOutOfRange]),
              default=OnOutOfRange.FAIL.value, show_default=True,
              help="If records were deleted before they were read: stop, or go on at one end.")  # fmt: skip
@click.pass_obj
def consume(
    target: ClusterTarget,
    *,
    topic: str,
    group: str | None,
    session_s: float | None,
    from_beginning: bool,
    offset: int | None,
    time_ms: int | None,
    last: int | None,
    until: int | TimestampMs | None,
    is_following: bool,
    partitions: tuple[int, ...],
    records_max: int | None,
    order: str,
    layout: Layout,
    record_end: bytes,
    key_separator: bytes,
    null_marker: str,
    on_out_of_range: str,
) -> None:
    """Print the records of TOPIC, one per line.

    Without --follow, it starts with the first record, and stops at the end that the topic has at the start. With
    --follow, it starts with the next new record. Several partitions are printed one after the other; with --follow in
    the order in which their records arrive; with --order time merged by timestamp.

    With --group, it shares the topic with the group's other members, and follows. It starts at the group's committed
    offset. Where the group has none, it starts as you say with --from-beginning or the like, by default with the next
    new record. Printed records are committed, so that each record is printed at least once.
    """
    if sys.__stdout__ is None:
        raise click.ClickException("cannot write to standard output: it is closed")
    if group is not None:
        check_member(
            is_by_time=order == "time",
            has_offset=offset is not None,
            has_partitions=bool(partitions),
        )
        is_following = True
    elif session_s is not None:
        raise click.UsageError("--session-timeout is for the members of a group: give --group, too")
    if is_following and order == "time":
        raise click.UsageError(
            "--order time needs an end: a partition that is silent would hold up the others; leave out --follow"
        )
    if is_following and until is not None:
        raise click.UsageError(
            "--until ends the command, --follow and --group go on: leave out one"
        )
    try:
        check_group(group)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    options = ConsumeOptions(
        topic=topic,
        group=group,
        session_timeout_ms=_SESSION_MS if session_s is None else round(session_s * 1000),
        partitions=tuple(dict.fromkeys(partitions)),
        start=start_position(
            is_from_beginning=from_beginning,
            offset=offset,
            time_ms=time_ms,
            last=last,
            is_following=is_following,
        ),
        is_following=is_following,
        is_by_time=order == "time",
        records_max=records_max,
        on_out_of_range=OnOutOfRange(on_out_of_range),
        until=until,
        layout=replace(
            layout,
            is_for_terminal=sys.stdout.isatty(),
            separator=record_end,
            key_separator=key_separator,
            null_marker=null_marker.encode(),
        ),
    )
    try:
        # Named partitions are read as they are. Otherwise partitions that are added later are read as well.
        is_whole = options.is_following and not options.partitions
        printed = print_following if is_whole else print_records
        target.run_client(lambda client: printed(client, options))
    except BrokenPipeError:
        # The reader of the pipe has closed it, as in "| head".
        return
    except OSError as error:
        raise click.ClickException(f"cannot write to standard output: {error}") from error


def start_position(
    *,
    is_from_beginning: bool,
    offset: int | None,
    time_ms: int | None,
    last: int | None,
    is_following: bool,
) -> Position:
    """Return where to begin.

    Raises:
        click.UsageError: more than one position was given.
    """
    named: list[Position] = []
    if is_from_beginning:
        named.append(StartAt.EARLIEST)
    if offset is not None:
        named.append(offset)
    if time_ms is not None:
        named.append(TimestampMs(time_ms))
    if last is not None:
        named.append(LastN(last))
    if len(named) > 1:
        raise click.UsageError("give one of --from-beginning, --offset, --time and --last")
    if named:
        return named[0]
    return StartAt.LATEST if is_following else StartAt.EARLIEST


async def print_records(client: Client, options: ConsumeOptions) -> None:
    """Print until the end, or until cancelled."""
    partitions = await _partitions(client, options)
    left = options.records_max
    if left == 0:
        return
    async with AsyncExitStack() as stack:
        watch = await stack.enter_async_context(quorum_watched(client.admin.has_majority))
        output = stack.enter_context(DaemonThread("standard output"))
        readers = [
            await stack.enter_async_context(
                _reader(
                    client,
                    options,
                    partition,
                    len(partitions),
                    await _end(client, options, partition),
                )
            )
            for partition in partitions
        ]
        stream = await stack.enter_async_context(aclosing(_in_order(readers, options)))
        async for records in stream:
            printed = records if left is None else records[:left]
            data = options.layout.encode(printed)
            await output.call(partial(write_all, sys.stdout.fileno(), data))
            watch.on_records()
            if left is not None:
                left -= len(printed)
                if left == 0:
                    return


async def _partitions(client: Client, options: ConsumeOptions) -> Sequence[int]:
    count = await client.metadata.partition_count(options.topic)
    for partition in options.partitions:
        if partition >= count:
            raise no_such_partition(options.topic, count, partition)
    return options.partitions or range(count)


async def _end(client: Client, options: ConsumeOptions, partition: int) -> int | None:
    if isinstance(options.until, TimestampMs):
        return await client.admin.offset_at(options.topic, partition, options.until.value)
    return options.until


def _reader(
    client: Client, options: ConsumeOptions, partition: int, reader_count: int, end: int | None
) -> PartitionReader:
    prefetch_chunks = PREFETCH_CHUNKS if reader_count <= FEW_READERS else 1
    share = HELD_BYTES // (reader_count * prefetch_chunks)
    return client.reader(
        options.topic,
        partition,
        start=options.start,
        end=end,
        follow=options.is_following,
        on_out_of_range=options.on_out_of_range,
        max_bytes=max(FETCH_BYTES_MIN, min(FETCH_BYTES, share)),
        prefetch_chunks=prefetch_chunks,
    )


def _in_order(
    readers: Sequence[PartitionReader], options: ConsumeOptions
) -> AsyncGenerator[list[ConsumedRecord], None]:
    if options.is_by_time:
        return by_time(readers)
    if options.is_following:
        return as_they_come(readers)
    return one_after_the_other(readers)
