"""The command ``milena``: asks and changes a cluster over HTTP; finds the commands that run nodes by name.

Exit codes, the same for every command:

    0    done; for ``status``, healthy
    1    refused; for ``status``, degraded
    2    no node could be reached
    3    not known: the change was sent, but no answer came back
    4    the thing named does not exist
    5    the thing to create exists already
    64   the command line is wrong
    69   the command needs an extra that is not installed
    130  interrupted
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, version
from typing import TypeVar

import click

from milena import output
from milena.admin import TIMEOUT_S, AdminClient, OffsetRange
from milena.cluster_view import TopicView
from milena.errors import (
    ClientError,
    TargetExistsError,
    TargetNotFoundError,
    UnknownResultError,
    UnreachableError,
)

EXIT_DEGRADED = 1
EXIT_REFUSED = 1
EXIT_UNREACHABLE = 2
EXIT_UNKNOWN = 3
EXIT_NOT_FOUND = 4
EXIT_EXISTS = 5
EXIT_USAGE = 64
EXIT_MISSING_EXTRA = 69
EXIT_INTERRUPTED = 130

DEFAULT_URL = "http://127.0.0.1:8082"
COMMAND_GROUP = "milena.commands"
OWN_PACKAGES = frozenset({"milena", "node", "http_api", "raft_meta", "storage"})
"""A module of these that cannot be found is a fault of the installation, not an extra left out."""

_EXIT_CODES: tuple[tuple[type[ClientError], int], ...] = (
    (UnreachableError, EXIT_UNREACHABLE),
    (UnknownResultError, EXIT_UNKNOWN),
    (TargetNotFoundError, EXIT_NOT_FOUND),
    (TargetExistsError, EXIT_EXISTS),
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which node to ask, and how long."""

    url: str
    timeout_s: float

    def run(self, work: Callable[[AdminClient], Awaitable[T]]) -> T:
        """Run one piece of work with a client of its own."""

        async def inside() -> T:
            async with AdminClient(self.url, timeout_s=self.timeout_s) as client:
                return await work(client)

        return asyncio.run(inside())


class MissingExtraError(click.ClickException):
    """The command is known, what it needs is not installed."""

    exit_code = EXIT_MISSING_EXTRA


class CommandsByName(click.Group):
    """A group that also has the commands other packages announce under ``milena.commands``.

    They are imported when they are asked for: the client works without the server's dependencies.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Own commands and announced ones."""
        return sorted({*super().list_commands(ctx), *_announced()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """An own command, else an announced one."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        point = _announced().get(cmd_name)
        return None if point is None else load_command(point)


def _announced() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=COMMAND_GROUP)}


def load_command(point: EntryPoint) -> click.Command:
    """The command behind an entry point, or a stand-in that says which extra to install."""
    try:
        command = point.load()
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in OWN_PACKAGES:
            raise
        return _stand_in(point.name, missing)
    assert isinstance(command, click.Command), f"{point.value} is not a command"
    return command


def _stand_in(name: str, missing: str) -> click.Command:
    sentence = f"needs the server's dependencies: pip install 'milena[node]' (no module {missing})"

    def refuse(words: tuple[str, ...]) -> None:
        del words
        raise MissingExtraError(f"{name} {sentence}")

    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        help=sentence[0].upper() + sentence[1:] + ".",
        short_help="(pip install 'milena[node]')",
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
    )


@click.group(cls=CommandsByName, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="MILENA_URL", default=DEFAULT_URL, show_default=True, metavar="URL",
              help="Any node of the cluster.")  # fmt: skip
@click.option("--timeout", "timeout_s", default=TIMEOUT_S, show_default=True, metavar="SECONDS",
              type=click.FloatRange(min=0.1), help="Longest wait for an answer.")  # fmt: skip
@click.version_option(version("milena"), prog_name="milena")
@click.pass_context
def cli(ctx: click.Context, url: str, timeout_s: float) -> None:
    """A partitioned, replicated, append-only log over HTTP/JSON."""
    ctx.obj = Target(url=url, timeout_s=timeout_s)


@cli.command()
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.pass_obj
def status(target: Target, is_json: bool) -> None:
    """Show nodes, leaders and under-replicated partitions; exit 1 when degraded, 2 when unreachable."""
    view = target.run(lambda client: client.cluster())
    health = view.health()
    if is_json:
        click.echo(output.as_json(output.status_json(view, health)))
    else:
        click.echo(output.status_text(view, health))
    if not health.is_healthy:
        raise click.exceptions.Exit(EXIT_DEGRADED)


@cli.group()
def topics() -> None:
    """Create, list, describe and delete topics."""


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
    target: Target,
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
def list_topics(target: Target, is_json: bool) -> None:
    """List all topics."""
    view = target.run(lambda client: client.cluster())
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
def describe_topic(target: Target, name: str, is_json: bool) -> None:
    """Show the topic NAME: settings, leaders, replicas, offsets."""

    async def work(client: AdminClient) -> tuple[TopicView, list[OffsetRange]]:
        topic = await client.topic(name)
        # Offsets are the leaders' to tell; a partition without one is still worth describing.
        led = [p for p in topic.partitions if p.leader is not None]
        return topic, await client.offsets(topic) if len(led) == len(topic.partitions) else []

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
def delete_topic(target: Target, name: str, yes: bool, is_json: bool) -> None:
    """Delete the topic NAME and all of its records."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"deleting {name} loses its records: say --yes")
        click.confirm(f"Delete topic {name} and all of its records?", abort=True, err=True)
    target.run(lambda client: client.delete_topic(name))
    click.echo(output.as_json({"deleted": name}) if is_json else f"deleted topic {name}")


def exit_code(error: ClientError) -> int:
    """The exit code that tells what the error means."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), EXIT_REFUSED)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; its exit code. Errors are one line on standard error."""
    try:
        result = cli.main(
            args=None if arguments is None else list(arguments),
            prog_name="milena",
            standalone_mode=False,
        )
    except ClientError as error:
        click.echo(f"milena: {error.message}", err=True)
        return exit_code(error)
    except click.UsageError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        click.echo(f"milena: {error.format_message()}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    # Outside standalone mode click returns the code of an Exit instead of raising it.
    return result if isinstance(result, int) else 0


def main() -> None:
    """Entry point of the ``milena`` script."""
    sys.exit(run())
