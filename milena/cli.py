"""The command ``milena``: queries and changes a cluster over HTTP, and finds the commands that run nodes by name.

Exit codes, the same for every command:

    0    done; for ``status``, healthy
    1    refused; for ``status``, degraded; for ``drain``, the node still leads partitions
    2    no node could be reached
    3    unknown: the change was sent, but no response arrived
    4    the named thing does not exist
    5    the thing to create exists already
    64   the command line, the URL or the profile is wrong
    69   the command needs the server, which is not installed
    70   ``start``: the node stopped because of a failed disk or an internal fault
    75   ``start``: no node of ``--join`` responded within a minute; a later start may succeed
    78   ``start`` and ``dev``: a node refuses to start; one line says why
    130  interrupted
"""

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from milena.cluster.admin import TIMEOUT_S
from milena.cluster.credentials import Credentials, nearer, texts_of
from milena.cluster.routing import without_user
from milena.commands.options import CommandGroup, Duration, explained, moved_to_front, with_examples
from milena.commands.profiles import complete_profile, own_profiles
from milena.commands.standard_streams import drop_unwritten, fill_closed
from milena.commands.target import (
    EXIT_INTERRUPTED,
    EXIT_MISSING_EXTRA,
    EXIT_REFUSED,
    EXIT_USAGE,
    ClusterTarget,
    exit_code,
    told,
    url_fault,
)
from milena.errors import ClientError
from milena.model.build_kind import build_kind
from milena.model.plain_text import escaped

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DEFAULT_URL = "http://127.0.0.1:8082"
FILE = click.Path(dir_okay=False)
CALLERS = frozenset({"user", "token", "token_file"})
"""The settings that name a caller."""
COMMAND_GROUP = "milena.commands"
COMMANDS = {
    "access": ("access.access", "Show or set the access mode."),
    "acls": ("access.acls", "List, add and remove access control entries."),
    "bench": ("benchmarks.bench", "Measure writing and reading."),
    "completion": (None, "Print a completion script for a shell."),
    "consume": ("consuming.consume", "Print the records of a topic, one a line."),
    "dev": (None, "Run a local cluster in the foreground."),
    "doctor": ("health.doctor", "Examine the cluster and say what to change."),
    "drain": ("drain", "Hand over what a node leads, before a stop."),
    "dump": (None, "Show the batches in a segment's file."),
    "groups": ("groups", "List, describe, reset and delete groups."),
    "help": (None, "Show the help of a command."),
    "nodes": ("nodes", "List, drain and remove nodes."),
    "partitions": ("partitions", "Move replicas and leaders of partitions."),
    "produce": ("producing.produce", "Write each line of a file to a topic."),
    "profiles": ("profiles", "List the profiles of this user."),
    "quotas": ("access.quotas", "List, set and delete quotas."),
    "reassignments": ("rebalance", "List and cancel moves of replicas."),
    "rebalance": ("rebalance", "Even out replicas, or empty a node."),
    "start": (None, "Run one node in the foreground."),
    "status": ("health.status", "Show nodes, leaders and replicas."),
    "tokens": ("access.tokens", "List, create and delete tokens."),
    "topics": ("topics", "Create, list, alter and delete topics."),
    "transactions": ("transactions", "List, describe and abort open transactions."),
    "users": ("access.users", "List, create, change and delete users."),
    "version": (None, "Show the version."),
}
"""The module of ``milena.commands`` that has each command, and the command's line in ``milena --help``.

The module is imported only when the command runs. None: the command is in this module, or one of the server's.
"""
OWN_COMMANDS = {name: module for name, (module, _) in COMMANDS.items() if module is not None}
SHORT_HELP = {name: text for name, (_, text) in COMMANDS.items()}
LOCAL_COMMANDS = frozenset({"completion", "help", "version"})
"""Commands that call no cluster."""
SERVER_COMMANDS = frozenset({"start", "dev", "dump"})
"""Commands of the server. They are listed here so that the client can say what to install when it is missing."""
STAND_IN_HELP = "(pip install milena-node)"
OWN_PACKAGES = frozenset({"milena", "node", "http_api", "raft_meta", "storage"})
"""If a module of these packages is missing, the installation is broken: it is no extra that was left out."""


class MissingExtraError(click.ClickException):
    """The command is known, but a package that it needs is not installed."""

    exit_code = EXIT_MISSING_EXTRA


class CommandsByName(CommandGroup):
    """A group that also has the commands that other packages announce under ``milena.commands``.

    Each command is imported only when it is used. So the client works without the server's dependencies, and a command
    that runs often does not load those of the others.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return own commands, announced ones, and those of a server that is not installed."""
        return sorted({*super().list_commands(ctx), *OWN_COMMANDS, *_announced(), *SERVER_COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return an own command, else an announced one."""
        found = self._command(cmd_name)
        return found if found is None else with_examples(found, cmd_name)

    def _command(self, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name in OWN_COMMANDS:
            found: object = getattr(
                import_module(f"milena.commands.{OWN_COMMANDS[cmd_name]}"), cmd_name
            )
            assert isinstance(found, click.Command), f"{cmd_name} is not a command"
            return found
        point = _announced().get(cmd_name)
        if point is not None:
            return load_command(point)
        return _stand_in(cmd_name) if cmd_name in SERVER_COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List all commands by their short help. Only commands of other packages are imported for it."""
        announced = _announced()
        rows = []
        for name in self.list_commands(ctx):
            is_here = name not in SERVER_COMMANDS or name in announced
            text = SHORT_HELP.get(name) if is_here else STAND_IN_HELP
            if text is None:
                command = self.get_command(ctx, name)
                text = "" if command is None else command.get_short_help_str()
            rows.append((name, text))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _announced() -> "dict[str, EntryPoint]":
    # Loading entry points costs half as much as all other modules. A command of the client does not need them.
    points = import_module("importlib.metadata").entry_points(group=COMMAND_GROUP)
    return {point.name: point for point in points}


def _version_text() -> str:
    number = import_module("importlib.metadata").version("milena")
    return f"milena, version {number} ({build_kind()})"


def _show_version(ctx: click.Context, parameter: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:
        click.echo(_version_text())
        ctx.exit()


def load_command(point: "EntryPoint") -> click.Command:
    """Return the command behind an entry point, or a stand-in that says which extra to install."""
    try:
        command = point.load()
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in OWN_PACKAGES:
            raise
        return _stand_in(point.name, f" (no module {missing})")
    assert isinstance(command, click.Command), f"{point.value} is not a command"
    return command


def _stand_in(name: str, why: str = "") -> click.Command:
    sentence = (
        f"needs the server: pip install milena-node, or in a checkout pip install . ./node{why}"
    )

    def refuse(words: tuple[str, ...]) -> None:
        del words
        raise MissingExtraError(f"{name} {sentence}")

    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        help=sentence[0].upper() + sentence[1:] + ".",
        short_help=STAND_IN_HELP,
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
    )


@click.group(cls=CommandsByName, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="MILENA_URL", default=DEFAULT_URL, show_default=True, metavar="URL",
              help="Any node of the cluster.")  # fmt: skip
@click.option("--profile", envvar="MILENA_PROFILE", metavar="NAME", shell_complete=complete_profile,
              help="The name of a cluster in ~/.config/milena/config.toml.")  # fmt: skip
@click.option("--timeout", "timeout_s", default=TIMEOUT_S, show_default=True, metavar="SECONDS",
              type=Duration("s", least=0.1), help="Longest wait for a response: 30, 500ms, 2m.")  # fmt: skip
@click.option("--token-file", type=FILE, envvar="MILENA_TOKEN_FILE", metavar="FILE",
              help="Send the token in this file; or set MILENA_TOKEN.")  # fmt: skip
@click.option("--user", envvar="MILENA_USER", metavar="NAME",
              help="Send requests as this user, with a password.")  # fmt: skip
@click.option("--password-file", type=FILE, envvar="MILENA_PASSWORD_FILE", metavar="FILE",
              help="A file with the user's password; or set MILENA_PASSWORD.")  # fmt: skip
@click.option("--ca", type=FILE, envvar="MILENA_CA", metavar="FILE",
              help="PEM of the authorities that signed the nodes' certificates.")  # fmt: skip
@click.option("--cert", type=FILE, envvar="MILENA_CERT", metavar="FILE",
              help="PEM of a certificate to show to nodes.")  # fmt: skip
@click.option("--key", type=FILE, envvar="MILENA_KEY", metavar="FILE",
              help="PEM of the key of --cert, unless the same file has it.")  # fmt: skip
@click.option("--client-id", envvar="MILENA_CLIENT_ID", metavar="ID",
              help="The name of this program, for quotas.")  # fmt: skip
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
              help="Show the version and exit.")  # fmt: skip
@click.pass_context
def cli(
    ctx: click.Context,
    /,
    url: str,
    profile: str | None,
    timeout_s: float,
    **credentials: str | None,
) -> None:
    """A partitioned, replicated, append-only log over HTTP/JSON."""
    target = ClusterTarget(url=url, timeout_s=timeout_s)
    # Other commands call no cluster, so a mistake in the user's profile file must not stop it.
    if ctx.invoked_subcommand in {*OWN_COMMANDS, *cli.commands} - LOCAL_COMMANDS:
        target = chosen_target(ctx, target, profile, credentials)
        fault = url_fault(target.url)
        if fault is not None:
            shown = without_user(target.url)
            raise click.UsageError(f"{shown!r} is not the URL of a node: {fault}")
    ctx.obj = target


def chosen_target(
    ctx: click.Context,
    target: ClusterTarget,
    profile: str | None,
    credentials: Mapping[str, str | None],
) -> ClusterTarget:
    """Choose the target from URL and profile: flags before variables, a URL before a profile, both before the default.

    Credentials follow the same order, with one exception. A profile that a flag names is used with its own credentials
    and those of flags. Credentials in variables most likely belong to another cluster.

    Raises:
        click.UsageError: both a URL and a profile were given by flags.
        BadProfileError: the profile does not exist, or its file is wrong.
    """
    url_from, profile_from = (ctx.get_parameter_source(name) for name in ("url", "profile"))
    if url_from is profile_from is ParameterSource.COMMANDLINE:
        raise click.UsageError("give one of --url and --profile")
    is_profile_named = profile_from is ParameterSource.COMMANDLINE
    flags = {
        name: text
        for name, text in credentials.items()
        if text is not None and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    said = flags if is_profile_named else nearer(flags, texts_of(os.environ))
    if url_from is not ParameterSource.DEFAULT and not is_profile_named:
        return replace(target, credentials=_credentials(said))
    if ctx.invoked_subcommand == "profiles":
        return target
    found = own_profiles()
    name = profile or found.default
    if name is None:
        return replace(target, credentials=_credentials(said))
    chosen = found.get(name)
    is_timeout_said = ctx.get_parameter_source("timeout_s") is not ParameterSource.DEFAULT
    timeout_s = target.timeout_s if is_timeout_said else chosen.timeout_s or target.timeout_s
    merged = nearer(said, chosen.credentials)
    is_caller_of_profile = CALLERS & merged.keys() - said.keys()
    return ClusterTarget(
        url=chosen.url,
        timeout_s=timeout_s,
        credentials=_credentials(merged),
        credentials_from=f"profile {name} in {found.path}" if is_caller_of_profile else None,
    )


def _credentials(texts: Mapping[str, str]) -> Credentials:
    try:
        return Credentials.from_texts(texts)
    except ValueError as error:
        raise click.UsageError(f"credentials: {error}") from error


@cli.command("version")
def show_version() -> None:
    """Show the version of this client, and whether its hot modules are compiled."""
    click.echo(_version_text())


@cli.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def show_help(ctx: click.Context, words: Sequence[str]) -> None:
    """Show the help of a command, or all commands."""
    place = ctx.find_root()
    for word in words:
        if not isinstance(place.command, CommandGroup):
            raise click.UsageError(f"{place.command_path} has no command {word!r}", ctx=place)
        name, command, _ = place.command.resolve_command(place, [word])
        assert command is not None, "an unknown command fails"
        place = click.Context(command, info_name=name, parent=place)
    click.echo(place.get_help())


@cli.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands and options in a shell."""
    found = import_module("click.shell_completion").get_completion_class(shell)
    click.echo(found(cli, {}, "milena", "_MILENA_COMPLETE").source())


def _answered(words: list[str]) -> object:
    """Run a command line. Options of ``milena`` may also stand behind a command that has no option of that name."""
    while True:
        try:
            return cli.main(args=words, prog_name="milena", standalone_mode=False)
        except click.NoSuchOption as error:
            # No command has run yet: all words are parsed before.
            moved = moved_to_front(words, error)
            if moved is None:
                raise
            words = moved


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit code. Errors are one line on standard error."""
    try:
        result = _answered(list(sys.argv[1:] if arguments is None else arguments))
    except ClientError as error:
        click.echo(f"milena: {escaped(told(error), keeps_lines=True)}", err=True)
        return exit_code(error)
    except click.UsageError as error:
        (explained(error) if isinstance(error, click.NoSuchOption) else error).show()
        return EXIT_USAGE
    except click.ClickException as error:
        click.echo(f"milena: {escaped(error.format_message(), keeps_lines=True)}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except OSError as error:
        # Network errors are typed. So this is a full disk, or a terminal that is gone, behind a standard stream.
        what = f"read or write: {error.strerror or error}"
        if sys.__stdout__ is None and error.errno == errno.EBADF:
            what = "write to standard output: it is closed"
        click.echo(f"milena: cannot {what}", err=True)
        drop_unwritten()
        return EXIT_REFUSED
    # Outside standalone mode click returns the code of an Exit instead of raising it.
    return result if isinstance(result, int) else 0


def main() -> None:
    """Run the ``milena`` script."""
    fill_closed()
    sys.exit(run())
