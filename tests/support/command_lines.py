"""Check command lines of ``milena``, and run them in this process."""

import asyncio
from collections.abc import Awaitable, Callable

import click
import pytest

from milena.cli import cli, run
from milena.commands.options import moved_to_front

Runner = Callable[..., Awaitable[tuple[int, str, str]]]
"""Runs ``milena`` with these words; returns its exit code, its output and its errors."""


def runner(url: str, capsys: pytest.CaptureFixture[str]) -> Runner:
    """Return a function that runs ``milena`` against a node."""

    async def call(*words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(run, ["--url", url, *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


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
