"""``milena topics``: lists and changes topics."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import click

from milena.cluster.admin import AdminClient, OffsetRange
from milena.cluster.moves import RequestedMove, with_replicas
from milena.cluster.view import TopicSizes, TopicView
from milena.commands import output
from milena.commands.options import (
    JSON,
    MOMENT,
    NAME,
    YES,
    CommandGroup,
    Number,
    Parsed,
    confirm,
    delete_each,
    parse_pair,
)
from milena.commands.target import ClusterTarget, no_such_partition
from milena.commands.times import parse_amount, parse_duration, parse_whole
from milena.errors import NotPermittedError, TargetExistsError

LATEST = "latest"


@click.group(cls=CommandGroup)
def topics() -> None:
    """Create, list, describe, alter and delete topics."""


def _config(text: str) -> tuple[str, str]:
    name, value = parse_pair(text)
    try:
        return name, plain_config(name, value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def plain_config(name: str, text: str) -> str:
    """Return a setting as nodes take it: a time (``.ms``) or an amount (``.bytes``) with a unit becomes a number.

    Raises:
        ValueError: the text begins with a number, and what follows is no unit.
    """
    if not text[:1].isdigit() or text.isdigit():
        return text
    if name.endswith(".ms"):
        return str(parse_duration(text))
    return str(parse_amount(text)) if name.endswith(".bytes") else text


@topics.command("create")
@click.argument("names", type=NAME, metavar="NAME...", nargs=-1, required=True)
@click.option("--partitions", type=Number(min=1), metavar="N",
              help="Number of partitions.  [default: the cluster's]")  # fmt: skip
@click.option("--replication-factor", type=Number(min=1), metavar="N",
              help="Replicas of each partition.  [default: the cluster's]")  # fmt: skip
@click.option("--config", "configs", multiple=True, type=Parsed(_config), metavar="NAME=VALUE",
              help="A topic setting, such as retention.ms=3d or segment.bytes=64M; may be repeated.")  # fmt: skip
@click.option("--if-not-exists", is_flag=True, help="Accept a topic that exists already.")
@JSON
@click.pass_obj
def create_topic(
    target: ClusterTarget,
    *,
    names: Sequence[str],
    partitions: int | None,
    replication_factor: int | None,
    configs: Sequence[tuple[str, str]],
    if_not_exists: bool,
    is_json: bool,
) -> None:
    """Create topics, one after the other. It stops at the first that cannot be created."""

    async def work(client: AdminClient, name: str) -> tuple[TopicView | None, bool]:
        try:
            await client.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=dict(configs),
            )
        except TargetExistsError:
            if not if_not_exists:
                raise
            return await client.topic(name), False
        return await _if_permitted(client, name), True

    for name in dict.fromkeys(names):
        topic, is_new = target.run(partial(work, name=name))
        if topic is None:
            output.show(is_json, {"is_new": True, "name": name}, f"created topic {name}")
            continue
        output.show(
            is_json,
            {"is_new": is_new, **output.topic_json(topic)},
            f"{'created' if is_new else 'exists:'} topic {topic.name}: "
            f"{len(topic.partitions)} partitions, replication factor {topic.replication_factor}",
        )


@topics.command("list")
@JSON
@click.pass_obj
def list_topics(target: ClusterTarget, is_json: bool) -> None:
    """List all topics."""
    found = target.cluster().topics
    output.show_list(is_json, found, output.topics_text, "no topics", output.topic_json)


@topics.command("describe")
@click.argument("name", type=NAME)
@JSON
@click.pass_obj
def describe_topic(target: ClusterTarget, name: str, is_json: bool) -> None:
    """Show the topic NAME: id, size, settings, leaders, replicas, offsets.

    Sizes are bytes on the disks of all replicas.
    """

    async def work(client: AdminClient) -> tuple[TopicView, TopicSizes, list[OffsetRange]]:
        topic, sizes = await client.topic(name), await client.topic_sizes(name)
        # Only leaders know offsets. A partition without a leader is still worth showing.
        led = tuple(p for p in topic.partitions if p.leader is not None)
        return topic, sizes, await client.offsets(replace(topic, partitions=led))

    topic, sizes, offsets = target.run(work)
    output.show(
        is_json,
        {**output.topic_json(topic, offsets), **output.named(sizes)},
        output.topic_text(topic, sizes, offsets),
    )


@topics.command("delete")
@click.argument("names", type=NAME, metavar="NAME...", nargs=-1, required=True)
@YES
@JSON
@click.pass_obj
def delete_topics(target: ClusterTarget, names: Sequence[str], yes: bool, is_json: bool) -> None:
    """Delete topics and all of their records."""
    delete_each(
        target,
        "topic",
        names,
        lambda client, name: client.delete_topic(name),
        loss="all records are lost",
        yes=yes,
        is_json=is_json,
    )


@topics.command("alter")
@click.argument("name", type=NAME)
@click.option("--partitions", type=Number(min=1), metavar="N",
              help="The new number of partitions; never fewer than now.")  # fmt: skip
@click.option("--replication-factor", "factor", type=Number(min=1), metavar="N",
              help="The new number of replicas; they are copied in the background.")  # fmt: skip
@click.option("--config", "configs", multiple=True, type=Parsed(_config), metavar="NAME=VALUE",
              help="Set a topic setting; may be repeated.")  # fmt: skip
@click.option("--delete-config", "resets", multiple=True, type=NAME, metavar="NAME",
              help="Reset a topic setting to its default; may be repeated.")  # fmt: skip
@JSON
@click.pass_obj
def alter_topic(
    target: ClusterTarget,
    *,
    name: str,
    partitions: int | None,
    factor: int | None,
    configs: Sequence[tuple[str, str]],
    resets: Sequence[str],
    is_json: bool,
) -> None:
    """Change the topic NAME while it is in use: settings, number of partitions, number of replicas.

    Settings are changed first, all or none of them. Existing records stay in their partition. With more partitions,
    later records of the same key may go to another partition.
    """
    if partitions is None and factor is None and not configs and not resets:
        raise click.UsageError(
            "nothing to change: give --partitions, --replication-factor, --config or --delete-config"
        )
    settings = dict(configs)
    both = sorted(settings.keys() & set(resets))
    if both:
        raise click.UsageError(f"{both[0]} is both set and reset")

    async def work(client: AdminClient) -> tuple[TopicView | None, list[RequestedMove]]:
        changes: dict[str, str | None] = {**settings, **dict.fromkeys(resets)}
        if changes:
            await client.alter_configs(name, changes)
        if partitions is not None:
            await client.add_partitions(name, partitions)
        moves = [] if factor is None else await _refactor(client, name, factor)
        return await _if_permitted(client, name), moves

    topic, moves = target.run(work)
    failed = [move.error for move in moves if move.error is not None]
    if failed:
        raise click.ClickException(f"the replication factor of {name} is not {factor}: {failed[0]}")
    if is_json:
        click.echo(output.as_json({"name": name} if topic is None else output.topic_json(topic)))
        return
    told = f", replication factor {factor}" if factor is not None else ""
    count = "" if topic is None else f": {len(topic.partitions)} partitions{told}"
    click.echo(f"altered topic {name}{count}")
    if moves:
        click.echo(f"{len(moves)} partitions are on the move: milena reassignments list")
    shown = settings if topic is None else topic.configs
    for config in sorted(settings if topic is None else {*settings, *resets}):
        click.echo(f"{config}={shown.get(config, '')}")


async def _if_permitted(client: AdminClient, name: str) -> TopicView | None:
    """Return the topic; None if the caller may not describe it, although it may change it."""
    with suppress(NotPermittedError):
        return await client.topic(name)
    return None


async def _refactor(client: AdminClient, name: str, factor: int) -> list[RequestedMove]:
    """Request the moves that give each partition of a topic this many replicas."""
    try:
        wanted = with_replicas(await client.cluster(), name, factor)
    except ValueError as error:
        raise click.UsageError(f"--replication-factor: {error}") from error
    return await client.move_replicas(wanted) if wanted else []


def _offset_or_latest(text: str) -> int | str:
    if text == LATEST:
        return text
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is neither an offset nor {LATEST!r}")
    return parse_whole(text)


@topics.command("delete-records")
@click.argument("name", type=NAME)
@click.option("--before-offset", type=Parsed(_offset_or_latest), metavar="N|latest",
              help="The first offset to keep; latest: nothing of what is there now.")  # fmt: skip
@click.option("--before-time", "time_ms", type=MOMENT, metavar="TIME",
              help="Keep the first record at or after this time: ISO-8601, ms since 1970, or -1h.")  # fmt: skip
@click.option("--partition", "-p", "partitions", type=Number(min=0), multiple=True,
              metavar="N", help="Only this partition; may be repeated.  [default: all]")  # fmt: skip
@YES
@JSON
@click.pass_obj
def delete_records(
    target: ClusterTarget,
    *,
    name: str,
    before_offset: int | str | None,
    time_ms: int | None,
    partitions: Sequence[int],
    yes: bool,
    is_json: bool,
) -> None:
    """Delete the oldest records of the topic NAME permanently.

    Every partition has its own offsets. So for a topic with several partitions, an offset needs --partition.
    """
    if (before_offset is None) == (time_ms is None):
        raise click.UsageError("say either --before-offset or --before-time")
    offset = before_offset if isinstance(before_offset, int) else None
    confirm(
        f"Delete records of topic {name}?",
        f"deleting records of {name} is for good",
        yes,
        if_not="not deleted",
    )

    async def work(client: AdminClient) -> list[tuple[int, int]]:
        topic = await client.topic(name)
        done = []
        for partition in _chosen(topic, partitions, is_one_needed=offset is not None):
            # None: nothing of what is there now is kept.
            before = offset if time_ms is None else await client.offset_at(name, partition, time_ms)
            done.append((partition, await client.delete_records(name, partition, before)))
        return done

    done = target.run(work)
    output.show(
        is_json,
        [{"partition": p, "log_start_offset": start} for p, start in done],
        output.table(("PARTITION", "FIRST OFFSET"), done),
    )


def _chosen(topic: TopicView, partitions: Sequence[int], *, is_one_needed: bool) -> list[int]:
    """Return the chosen partitions: all, unless some were named."""
    there = [p.partition for p in topic.partitions]
    missing = [p for p in partitions if p not in there]
    if missing:
        raise no_such_partition(topic.name, len(there), missing[0])
    if is_one_needed and not partitions and len(there) > 1:
        raise click.UsageError(
            f"topic {topic.name} has {len(there)} partitions, each with offsets of its own: say --partition"
        )
    return sorted(set(partitions)) or there
