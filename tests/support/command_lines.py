"""Check command lines of ``milena`` without running them."""

import click

from milena.cli import cli
from milena.commands.options import moved_to_front


def check_command_line(words: list[str]) -> None:
    """Parse a command line as ``milena`` does, down to its last command.

    Raises:
        click.UsageError: there is no such command or option, or an argument is missing or wrong.
    """
    while True:
        try:
            _parse(list(words))
        except click.NoSuchOption as error:
            moved = moved_to_front(words, error)
            if moved is None:
                raise
            words = moved
        else:
            return


def _parse(words: list[str]) -> None:
    ctx = cli.make_context("milena", words)
    while isinstance(ctx.command, click.Group):
        rest = [*ctx._protected_args, *ctx.args]
        if not rest and ctx.command.invoke_without_command:
            return
        name, command, words = ctx.command.resolve_command(ctx, rest)
        assert command is not None, "an unknown command fails"
        ctx = command.make_context(name, words, parent=ctx)
