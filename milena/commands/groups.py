"""``milena groups``: consumer groups, their progress, and changes of it."""

from collections.abc import Sequence

import click

from milena.cluster.admin import AdminClient
from milena.cluster.group_admin import PartitionLag
from milena.cluster.group_views import GroupView
from milena.commands import group_output, output
from milena.commands.options import CommandGroup, confirm, moment
from milena.commands.target import ClusterTarget
from milena.errors import TargetNotFoundError
from milena.records import Position, StartAt, TimestampMs


@click.group(cls=CommandGroup)
def groups() -> None:
    """List, describe, reset and delete consumer groups."""


@groups.command("list")
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def list_groups(target: ClusterTarget, is_json: bool) -> None:
    """List all consumer groups."""
    found = target.run(lambda client: client.groups())
    if is_json:
        click.echo(output.as_json([group_output.summary_json(group) for group in found]))
    elif found:
        click.echo(group_output.groups_text(found))
    else:
        click.echo("no groups", err=True)


@groups.command("describe")
@click.argument("group")
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def describe_group(target: ClusterTarget, group: str, is_json: bool) -> None:
    """Show the group GROUP: its members, and for each partition its offset, end, lag and owner."""

    async def work(client: AdminClient) -> tuple[GroupView, list[PartitionLag]]:
        found = await client.group(group)
        return found, await client.group_lags(found)

    found, lags = target.run(work)
    if is_json:
        click.echo(output.as_json(group_output.group_json(found, lags)))
    else:
        click.echo(group_output.group_text(found, lags))


async def _is_there(client: AdminClient, group: str) -> bool:
    try:
        await client.group(group)
    except TargetNotFoundError:
        return False
    return True


def _parse_end_or_offset(
    ctx: click.Context, parameter: click.Parameter, text: str | None
) -> Position | None:
    if text is None:
        return None
    if text in {end.value for end in StartAt}:
        return StartAt(text)
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(
            f"{text!r} is neither an offset nor earliest nor latest", ctx=ctx, param=parameter
        )
    return int(text)


@groups.command("reset")
@click.argument("group")
@click.option("--topic", required=True, metavar="NAME", help="The topic to go on elsewhere in.")
@click.option("--partition", "-p", "partitions", type=click.IntRange(min=0), multiple=True,
              metavar="N", help="Only this partition; may be repeated.  [default: all]")  # fmt: skip
@click.option("--to-offset", "place", callback=_parse_end_or_offset, metavar="N|earliest|latest",
              help="The next offset to read. Below the start: the start. Above the end: refused.")  # fmt: skip
@click.option("--to-time", "time_ms", callback=moment, metavar="TIME",
              help="The first record at or after this time: ISO-8601, ms since 1970, or -1h.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def reset_group(
    target: ClusterTarget,
    *,
    group: str,
    topic: str,
    partitions: Sequence[int],
    place: Position | None,
    time_ms: int | None,
    yes: bool,
    is_json: bool,
) -> None:
    """Reset the offsets of the group GROUP in a topic. The group must have no members: stop them first.

    If the group does not exist, it is created, so that its consumers start at these offsets.
    """
    if (place is None) == (time_ms is None):
        raise click.UsageError("say either --to-offset or --to-time")
    position: Position | None = TimestampMs(time_ms) if time_ms is not None else place
    assert position is not None, "one of the two was said"
    is_new = not target.run(lambda client: _is_there(client, group))
    if is_new:
        question = f"There is no group {group}. Make it, with these offsets in topic {topic}?"
        confirm(
            question, f"there is no group {group}, and it would be made", yes, if_not="not made"
        )
    else:
        question = f"Reset the offsets of group {group} in topic {topic}?"
        confirm(question, f"the former offsets of {group} are forgotten", yes, if_not="not reset")
    done = target.run(
        lambda client: client.reset_group(
            group, topic, position, partitions=sorted(set(partitions)) or None
        )
    )
    if is_new:
        # Kafka's own tool does the same, so that consumers find where to begin. A mistyped name must still be noticed.
        click.echo(
            f"group {group} is new; if that is not what you meant: milena groups delete {group}",
            err=True,
        )
    rows = sorted((where.partition, offset) for where, offset in done.items())
    if is_json:
        click.echo(output.as_json([{"partition": p, "offset": offset} for p, offset in rows]))
    else:
        click.echo(output.table(("PARTITION", "OFFSET"), rows))


@groups.command("delete")
@click.argument("group")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def delete_group(target: ClusterTarget, group: str, yes: bool, is_json: bool) -> None:
    """Delete the group GROUP and its offsets. It must have no members."""
    confirm(
        f"Delete group {group} and its offsets?",
        f"the offsets of {group} are forgotten",
        yes,
        if_not="not deleted",
    )
    target.run(lambda client: client.delete_group(group))
    click.echo(output.as_json({"deleted": group}) if is_json else f"deleted group {group}")
