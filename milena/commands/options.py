"""Parts of options that several commands share: types, callbacks for ``click.option``, and confirmations."""

import math
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import click
from click.core import ParameterSource

from milena.cluster.admin import AdminClient
from milena.commands import output
from milena.commands.examples import epilog_of
from milena.commands.producing.lines import parse_separator
from milena.commands.target import ClusterTarget
from milena.commands.times import parse_amount, parse_duration, parse_moment, parse_whole
from milena.model.clock import SystemClock


class CommandGroup(click.Group):
    """A group that lists its commands in the error about an unknown command, and adds examples to their help."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, with its examples."""
        found = super().get_command(ctx, cmd_name)
        return found if found is None else with_examples(found, f"{self.name} {cmd_name}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command's name, the command, and the arguments behind it."""
        name = args[0]
        if (
            not ctx.resilient_parsing
            and not name.startswith("-")
            and self.get_command(ctx, name) is None
        ):
            names = self.list_commands(ctx)
            close = get_close_matches(name, names)
            told = (
                f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names)}"
            )
            ctx.fail(f"No such command '{name}': {told}")
        return super().resolve_command(ctx, args)


def with_examples(command: click.Command, words: str) -> click.Command:
    """Add the examples of a command to the end of its help."""
    epilog = epilog_of(words)
    if epilog is not None and not (command.epilog or "").endswith(epilog):
        command.epilog = "\n\n".join(filter(None, (command.epilog, epilog)))
    return command


_OTHERS_WORDS_FOR_URL = re.compile(r"--(bootstrap-?)?(servers?|brokers?|hosts?|endpoints?|address)")


def explained(error: click.NoSuchOption) -> click.UsageError:
    """Return the error with a suggestion: an option that belongs before the command, or one with this prefix."""
    ctx, name = error.ctx, error.option_name
    if ctx is None:
        return error
    meant = "--url" if _OTHERS_WORDS_FOR_URL.fullmatch(name) else name
    for place in _upwards(ctx):
        if meant in _option_names(place) and (place is not ctx or meant != name):
            told = f"No such option '{name}': use {place.command_path} {meant} …"
            if place is not ctx:
                told += f" {ctx.command_path.removeprefix(place.command_path).strip()}"
            return click.UsageError(told, ctx=ctx)
    # Click suggests options of similar spelling. A prefix of a long option is not similar enough for that.
    if begun := [option for option in _option_names(ctx) if option.startswith(name)]:
        told = f"No such option '{name}': did you mean {' or '.join(begun)}?"
        return click.UsageError(told, ctx=ctx)
    return error


def moved_to_front(words: Sequence[str], error: click.NoSuchOption) -> list[str] | None:
    """Return a command line with the unknown option before the command, where ``milena`` itself has it; else None.

    Raises:
        click.UsageError: the option is there already. Which of its two values counts would be a guess.
    """
    name, ctx = error.option_name, error.ctx
    at = next((at for at, word in enumerate(words) if word.split("=")[0] == name), None)
    if ctx is None or at is None:
        return None
    root = ctx.find_root()
    param = next((param for param in root.command.get_params(root) if name in param.opts), None)
    if param is None or param.name is None:
        return None
    if root.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"{name} is given twice", ctx=ctx)
    has_value = isinstance(param, click.Option) and not param.is_flag and "=" not in words[at]
    end = at + 1 + has_value
    if end > len(words):
        raise click.UsageError(f"Option '{name}' requires an argument.", ctx=ctx)
    return [*words[at:end], *words[:at], *words[end:]]


def _upwards(ctx: click.Context) -> Iterator[click.Context]:
    place: click.Context | None = ctx
    while place is not None:
        yield place
        place = place.parent


def _option_names(ctx: click.Context) -> list[str]:
    return [name for param in ctx.command.get_params(ctx) for name in param.opts]


class FiniteRange(click.FloatRange):
    """A finite number in a range. Click accepts NaN in every range, and infinity in open ranges."""

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number, or fail if it is not finite."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Duration(FiniteRange):
    """A time span with or without a unit: ``90``, ``1500ms``, ``3d``. A number alone has the option's own unit."""

    name = "duration"

    def __init__(self, unit: str, *, least: float = 0, most: float | None = None) -> None:
        super().__init__(min=least, max=most)
        self._unit = unit
        self._unit_ms = parse_duration(f"1{unit}")

    def convert(
        self, value: float | str, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the span in the option's unit."""
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                try:
                    value = parse_duration(str(value)) / self._unit_ms
                except ValueError:
                    self.fail(
                        f"{value!r} is not a time: write 90{self._unit}, 2m or 3d (ms, s, m, h, d, w)",
                        param,
                        ctx,
                    )
        return super().convert(value, param, ctx)


class Name(click.types.StringParamType):
    """A name that is not empty."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. Nodes check the rest."""
        if not value:
            self.fail("a name is empty: is a variable of your shell not set?", param, ctx)
        return value


NAME = Name()


class Number(click.IntRange):
    """A whole number in a range, such as an id or an offset."""

    def convert(
        self, value: int | str, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the number."""
        try:
            return int(super().convert(parse_whole(str(value)), param, ctx))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class Amount(click.IntRange):
    """A whole number with or without a unit: 800000, 50M, 64Ki."""

    name = "amount"

    def convert(
        self, value: int | str, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the number."""
        if isinstance(value, str):
            try:
                value = parse_amount(value)
            except ValueError as error:
                self.fail(f"{error}.", param, ctx)
        return int(super().convert(value, param, ctx))


class SignedAmount(Amount):
    """An amount that may be negative: -100, 2k."""

    def _describe_range(self) -> str:
        # Click shows a range without bounds as x<=None.
        return ""

    def convert(
        self, value: int | str, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the number."""
        if isinstance(value, str) and value[:1] == "-":
            return -super().convert(value[1:], param, ctx)
        return super().convert(value, param, ctx)


class Rate(FiniteRange):
    """Records per second, with or without a unit: 0.5, 2000, 2k."""

    name = "rate"

    def convert(
        self, value: float | str, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                try:
                    value = parse_amount(str(value))
                except ValueError as error:
                    self.fail(f"{error}.", param, ctx)
        return super().convert(value, param, ctx)


class Parsed(click.types.UnprocessedParamType):
    """A type whose values a function parses. The function's ``ValueError`` says what is wrong."""

    def __init__(self, parse: Callable[[str], object]) -> None:
        self._parse = parse

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:  # noqa: ANN401  (what the function returns)
        """Return the parsed value."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parse_pair(text: str) -> tuple[str, str]:
    """Return the name and the value of ``NAME=VALUE``.

    Raises:
        ValueError: the text has another form.
    """
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value


def moment(text: str) -> int:
    """Return a time in ms since 1970; a relative time counts from now.

    Raises:
        ValueError: the text is no time.
    """
    return parse_moment(text, now_ms=SystemClock().wall_ms())


MOMENT = Parsed(moment)
SEPARATOR = Parsed(parse_separator)
JSON = click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")


def delete_each(
    target: ClusterTarget,
    kind: str,
    names: Sequence[str],
    delete: Callable[[AdminClient, str], Awaitable[None]],
    *,
    loss: str,
    yes: bool,
    is_json: bool,
) -> None:
    """Delete things by name, one after the other, after one question. Print each when it is deleted.

    ``loss`` says what else ends with them. It stops at the first that cannot be deleted.
    """
    each = list(dict.fromkeys(names))
    told = f"{kind} {each[0]}" if len(each) == 1 else f"{len(each)} {kind}s ({', '.join(each)})"
    question, why = f"Delete {told} ({loss})?", f"deleting {told} is final ({loss})"
    confirm(question, why, yes, if_not="not deleted")

    async def work(client: AdminClient) -> None:
        for name in each:
            await delete(client, name)
            output.show(is_json, {"deleted": name}, f"deleted {kind} {name}")

    target.run(work)


def confirm(question: str, why: str, yes: bool, *, if_not: str) -> None:
    """Ask before something is lost; without a terminal, require --yes.

    Raises:
        click.UsageError: standard input is no terminal.
        click.ClickException: the answer is no; ``if_not`` says what was therefore not done.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{if_not}, because there is no terminal on which to confirm that {why}: say --yes"
        )
    if not click.confirm(question, err=True):
        raise click.ClickException(if_not)
