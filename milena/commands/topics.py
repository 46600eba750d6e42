"""``milena topics``: lists and changes topics."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from milena.cluster.admin import AdminClient, OffsetRange
from milena.cluster.view import TopicView
from milena.commands import output
from milena.commands.options import CommandGroup, confirm, moment
from milena.commands.target import ClusterTarget, NoSuchPartitionError
from milena.errors import TargetExistsError

LATEST = "latest"


@click.group(cls=CommandGroup)
def topics() -> None:
    """Create, list, describe, alter and delete topics."""


def _parse_configs(
    ctx: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> dict[str, str]:
    configs = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", ctx=ctx, param=parameter)
        configs[name] = value
    return configs


@topics.command("create")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), help="Default: the cluster's.")
@click.option("--replication-factor", type=click.IntRange(min=1), help="Default: the cluster's.")
@click.option("--config", "configs", multiple=True, callback=_parse_configs, metavar="NAME=VALUE",
              help="A topic setting; may be repeated.")  # fmt: skip
@click.option("--if-not-exists", is_flag=True, help="A topic that is there already is fine.")
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def create_topic(
    target: ClusterTarget,
    *,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: dict[str, str],
    if_not_exists: bool,
    is_json: bool,
) -> None:
    """Create the topic NAME."""

    async def work(client: AdminClient) -> tuple[TopicView, bool]:
        try:
            await client.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=configs,
            )
        except TargetExistsError:
            if not if_not_exists:
                raise
            return await client.topic(name), False
        return await client.topic(name), True

    topic, is_new = target.run(work)
    if is_json:
        click.echo(output.as_json({"is_new": is_new, **output.topic_json(topic)}))
    else:
        click.echo(
            f"{'created' if is_new else 'exists:'} topic {topic.name}: "
            f"{len(topic.partitions)} partitions, replication factor {topic.replication_factor}"
        )


@topics.command("list")
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def list_topics(target: ClusterTarget, is_json: bool) -> None:
    """List all topics."""
    view = target.cluster()
    if is_json:
        click.echo(output.as_json([output.topic_json(topic) for topic in view.topics]))
    elif view.topics:
        click.echo(output.topics_text(view.topics))
    else:
        click.echo("no topics", err=True)


@topics.command("describe")
@click.argument("name")
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def describe_topic(target: ClusterTarget, name: str, is_json: bool) -> None:
    """Show the topic NAME: settings, leaders, replicas, offsets."""

    async def work(client: AdminClient) -> tuple[TopicView, list[OffsetRange]]:
        topic = await client.topic(name)
        # Only leaders know offsets. A partition without a leader is still worth showing.
        led = tuple(p for p in topic.partitions if p.leader is not None)
        return topic, await client.offsets(replace(topic, partitions=led))

    topic, offsets = target.run(work)
    if is_json:
        click.echo(output.as_json(output.topic_json(topic, offsets)))
    else:
        click.echo(output.topic_text(topic, offsets))


@topics.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def delete_topic(target: ClusterTarget, name: str, yes: bool, is_json: bool) -> None:
    """Delete the topic NAME and all of its records."""
    confirm(
        f"Delete topic {name} and all of its records?",
        f"deleting {name} loses its records",
        yes,
        if_not="not deleted",
    )
    target.run(lambda client: client.delete_topic(name))
    click.echo(output.as_json({"deleted": name}) if is_json else f"deleted topic {name}")


@topics.command("alter")
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), metavar="N",
              help="How many it is to have; never fewer than it has.")  # fmt: skip
@click.option("--config", "configs", multiple=True, callback=_parse_configs, metavar="NAME=VALUE",
              help="Set a topic setting; may be repeated.")  # fmt: skip
@click.option("--delete-config", "resets", multiple=True, metavar="NAME",
              help="Reset a topic setting to its default; may be repeated.")  # fmt: skip
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def alter_topic(
    target: ClusterTarget,
    *,
    name: str,
    partitions: int | None,
    configs: dict[str, str],
    resets: Sequence[str],
    is_json: bool,
) -> None:
    """Change the topic NAME while it is in use: more partitions, other settings.

    Settings are changed first, all or none of them. Existing records stay in their partition. With more partitions,
    later records of the same key may go to another partition.
    """
    if partitions is None and not configs and not resets:
        raise click.UsageError("nothing to change: say --partitions, --config or --delete-config")
    both = sorted(configs.keys() & set(resets))
    if both:
        raise click.UsageError(f"{both[0]} is both set and reset")

    async def work(client: AdminClient) -> TopicView:
        changes: dict[str, str | None] = {**configs, **dict.fromkeys(resets)}
        if changes:
            await client.alter_configs(name, changes)
        if partitions is not None:
            await client.add_partitions(name, partitions)
        return await client.topic(name)

    topic = target.run(work)
    if is_json:
        click.echo(output.as_json(output.topic_json(topic)))
        return
    click.echo(f"altered topic {topic.name}: {len(topic.partitions)} partitions")
    for config in sorted({*configs, *resets}):
        click.echo(f"{config}={topic.configs.get(config, '')}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionEnd:
    """The end of a deletion: an offset, the first record of a time, or (both None) the end of the partition."""

    offset: int | None
    time_ms: int | None

    async def before(self, client: AdminClient, topic: str, partition: int) -> int | None:
        """Return the first offset to keep; None to keep no present record."""
        if self.time_ms is None:
            return self.offset
        return await client.offset_at(topic, partition, self.time_ms)


def _parse_offset(
    ctx: click.Context, parameter: click.Parameter, text: str | None
) -> int | str | None:
    if text is None or text == LATEST:
        return text
    if not (text.isascii() and text.isdigit()):
        raise click.BadParameter(
            f"{text!r} is neither an offset nor {LATEST!r}", ctx=ctx, param=parameter
        )
    return int(text)


@topics.command("delete-records")
@click.argument("name")
@click.option("--before-offset", callback=_parse_offset, metavar="N|latest",
              help="The first offset to keep; latest: nothing of what is there now.")  # fmt: skip
@click.option("--before-time", "time_ms", callback=moment, metavar="TIME",
              help="Keep the first record at or after this time: ISO-8601, ms since 1970, or -1h.")  # fmt: skip
@click.option("--partition", "-p", "partitions", type=click.IntRange(min=0), multiple=True,
              metavar="N", help="Only this partition; may be repeated.  [default: all]")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "is_json", is_flag=True, help="For programs.")
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
    cut = DeletionEnd(
        offset=before_offset if isinstance(before_offset, int) else None, time_ms=time_ms
    )
    confirm(
        f"Delete records of topic {name}?",
        f"deleting records of {name} is for good",
        yes,
        if_not="not deleted",
    )

    async def work(client: AdminClient) -> list[tuple[int, int]]:
        topic = await client.topic(name)
        done = []
        for partition in _chosen(topic, partitions, is_one_needed=cut.offset is not None):
            before = await cut.before(client, name, partition)
            done.append((partition, await client.delete_records(name, partition, before)))
        return done

    done = target.run(work)
    if is_json:
        click.echo(
            output.as_json([{"partition": p, "log_start_offset": start} for p, start in done])
        )
    else:
        click.echo(output.table(("PARTITION", "FIRST OFFSET"), done))


def _chosen(topic: TopicView, partitions: Sequence[int], *, is_one_needed: bool) -> list[int]:
    """Return the chosen partitions: all, unless some were named."""
    there = [p.partition for p in topic.partitions]
    missing = [p for p in partitions if p not in there]
    if missing:
        raise NoSuchPartitionError(f"topic {topic.name} has no partition {missing[0]}")
    if is_one_needed and not partitions and len(there) > 1:
        raise click.UsageError(
            f"topic {topic.name} has {len(there)} partitions, each with offsets of its own: say --partition"
        )
    return sorted(set(partitions)) or there
