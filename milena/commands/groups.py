"""``milena groups``: consumer groups, their progress, and changes of it."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import click

from milena.cluster.admin import AdminClient
from milena.cluster.group_admin import PartitionLag
from milena.cluster.group_views import GroupView
from milena.commands import group_output, output
from milena.commands.options import (
    JSON,
    MOMENT,
    NAME,
    YES,
    CommandGroup,
    Number,
    Parsed,
    SignedAmount,
    confirm,
    delete_each,
)
from milena.commands.target import ClusterTarget, no_such_partition
from milena.commands.times import parse_whole
from milena.errors import TargetNotFoundError
from milena.records import Position, StartAt, TimestampMs, TopicPartition


@click.group(cls=CommandGroup)
def groups() -> None:
    """List, describe, reset and delete consumer groups."""


@groups.command("list")
@JSON
@click.pass_obj
def list_groups(target: ClusterTarget, is_json: bool) -> None:
    """List all consumer groups."""
    found = target.run(lambda client: client.groups())
    output.show_list(is_json, found, group_output.groups_text, "no groups")


@groups.command("describe")
@click.argument("names", type=NAME, metavar="GROUP...", nargs=-1, required=True)
@JSON
@click.pass_obj
def describe_groups(target: ClusterTarget, names: Sequence[str], is_json: bool) -> None:
    """Show groups: their members, and for each partition its offset, end, lag and owner."""

    async def work(client: AdminClient, group: str) -> tuple[GroupView, list[PartitionLag]]:
        found = await client.group(group)
        return found, await client.group_lags(found)

    gap = ""
    for group in dict.fromkeys(names):
        found, lags = target.run(partial(work, group=group))
        if is_json:
            click.echo(output.as_json(group_output.group_json(found, lags)))
        else:
            click.echo(gap + group_output.group_text(found, lags))
            gap = "\n"


async def _resettable(client: AdminClient, group: str, *, dry_run: bool) -> bool:
    """Return whether the group exists. A dry run says if it would be created.

    Raises:
        click.ClickException: the group has members, so that a reset would be refused.
    """
    try:
        found = await client.group(group)
    except TargetNotFoundError:
        if dry_run:
            click.echo(f"there is no group {group}: the reset would create it", err=True)
        return False
    if found.members:
        count = len(found.members)
        members = "1 member: stop it" if count == 1 else f"{count} members: stop them"
        raise click.ClickException(f"group {group} has {members} before its offsets are reset")
    return True


def _end_or_offset(text: str) -> Position:
    if text in {end.value for end in StartAt}:
        return StartAt(text)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is neither an offset nor earliest nor latest")
    return parse_whole(text)


@groups.command("reset")
@click.argument("group", type=NAME)
@click.option("--topic", "topics", required=True, multiple=True, type=NAME, metavar="NAME",
              help="Reset the offsets in this topic; may be repeated.")  # fmt: skip
@click.option("--partition", "-p", "partitions", type=Number(min=0), multiple=True,
              metavar="N", help="Only this partition; may be repeated.  [default: all]")  # fmt: skip
@click.option("--to-offset", "place", type=Parsed(_end_or_offset), metavar="N|earliest|latest",
              help="The next offset to read. Below the start: the start. Above the end: refused.")  # fmt: skip
@click.option("--to-time", "time_ms", type=MOMENT, metavar="TIME",
              help="The first record at or after this time: ISO-8601, ms since 1970, or -1h.")  # fmt: skip
@click.option("--shift-by", "shift", type=SignedAmount(), metavar="N",
              help="N records forwards, or backwards if negative; at most to the start or the end.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show the offsets that a reset would set.")
@YES
@JSON
@click.pass_obj
def reset_group(
    target: ClusterTarget,
    *,
    group: str,
    topics: Sequence[str],
    partitions: Sequence[int],
    place: Position | None,
    time_ms: int | None,
    shift: int | None,
    dry_run: bool,
    yes: bool,
    is_json: bool,
) -> None:
    """Reset the offsets of the group GROUP in topics. The group must have no members: stop them first.

    If the group does not exist, it is created, so that its consumers start at these offsets.
    """
    if sum(value is not None for value in (place, time_ms, shift)) != 1:
        raise click.UsageError("give one of --to-offset, --to-time and --shift-by")
    position: Position | None = TimestampMs(time_ms) if time_ms is not None else place
    names, numbers = list(dict.fromkeys(topics)), sorted(set(partitions))

    async def look(client: AdminClient) -> tuple[bool, list[PlannedReset]]:
        found = [await planned_resets(client, group, topic, position, shift) for topic in names]
        every = [row for rows in found for row in rows]
        missing = {(topic, n) for topic in names for n in numbers} - {r[:2] for r in every}
        if missing:
            topic, number = min(missing)
            count = sum(row.topic == topic for row in every)
            raise no_such_partition(topic, count, number)
        return await _resettable(client, group, dry_run=dry_run), [
            row for row in every if not numbers or row.partition in numbers
        ]

    is_there, rows = target.run(look)
    if shift is not None and not (rows := [row for row in rows if row.now is not None]):
        raise click.ClickException(
            f"group {group} has no committed offset to shift: give --to-offset or --to-time"
        )
    if not dry_run:
        where = f"topic{'' if len(names) == 1 else 's'} {', '.join(names)}"
        if is_there:
            question = f"Reset the offsets of group {group} in {where}?"
            confirm(question, f"the former offsets of {group} are lost", yes, if_not="not reset")
        else:
            question = f"There is no group {group}. Create it, with these offsets in {where}?"
            why = f"there is no group {group}, and it would be created"
            confirm(question, why, yes, if_not="not created")

        async def work(client: AdminClient) -> dict[TopicPartition, int]:
            done: dict[TopicPartition, int] = {}
            for topic in names:
                done |= (
                    await _shift(client, group, topic, rows)
                    if position is None
                    else await client.reset_group(
                        group, topic, position, partitions=numbers or None
                    )
                )
            return done

        done = target.run(work)
        before = {row[:2]: row.now for row in rows}
        rows = [
            PlannedReset(*where, before.get(where), offset)
            for where, offset in sorted(done.items())
        ]
        if not is_there:
            # Kafka's tool creates a group, too, so that consumers find where to begin. The user must notice a typo.
            click.echo(
                f"group {group} is new; if that is not what you meant: milena groups delete {group}",
                err=True,
            )
    output.show(
        is_json,
        [
            {"topic": r.topic, "partition": r.partition, "before": r.now, "offset": r.then}
            for r in rows
        ],
        output.table(("TOPIC", "PARTITION", "BEFORE", "OFFSET"), rows),
    )


class PlannedReset(NamedTuple):
    """The offset of a group in a partition before (None: it has none) and after a reset."""

    topic: str
    partition: int
    now: int | None
    then: int


async def planned_resets(
    client: AdminClient, group: str, topic: str, position: Position | None, shift: int | None
) -> list[PlannedReset]:
    """Return where a reset would lead in each partition of a topic: to a position, or ``shift`` records further."""
    if position is not None:
        plan = await client.reset_plan(group, topic, position)
        return [PlannedReset(topic, p, now, then) for p, (now, then) in sorted(plan.items())]
    first = await client.reset_plan(group, topic, StartAt.EARLIEST)
    end = await client.reset_plan(group, topic, StartAt.LATEST)
    assert shift is not None, "without a position there is a shift"
    return [
        PlannedReset(
            topic, p, now, start if now is None else max(start, min(now + shift, end[p][1]))
        )
        for p, (now, start) in sorted(first.items())
        if p in end
    ]


async def _shift(
    client: AdminClient, group: str, topic: str, rows: Sequence[PlannedReset]
) -> dict[TopicPartition, int]:
    """Commit the planned offsets of one topic: a request for each offset, with all partitions that get it."""
    places: dict[int, list[int]] = {}
    for row in rows:
        if row.topic == topic:
            places.setdefault(row.then, []).append(row.partition)
    done: dict[TopicPartition, int] = {}
    for then, partitions in places.items():
        done |= await client.reset_group(group, topic, then, partitions=partitions)
    return done


@groups.command("delete")
@click.argument("names", type=NAME, metavar="GROUP...", nargs=-1, required=True)
@YES
@JSON
@click.pass_obj
def delete_groups(target: ClusterTarget, names: Sequence[str], yes: bool, is_json: bool) -> None:
    """Delete groups and their offsets. They must have no members."""
    delete_each(
        target,
        "group",
        names,
        lambda client, name: client.delete_group(name),
        loss="the committed offsets are lost",
        yes=yes,
        is_json=is_json,
    )
