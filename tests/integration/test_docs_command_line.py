"""docs/command-line.md is true: every command is run and compared, and no option goes without a line."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from milena import cli as command_line
from tests.support.http.console import Place, blocks, started, steps

cli = command_line.cli

pytestmark = pytest.mark.integration

TEXT = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The cluster that the document starts."""
    (start,) = blocks(TEXT, "sh")
    with started(start, tmp_path_factory.mktemp("command-line")) as found:
        yield found


def test_every_command_prints_what_the_document_says(place: Place) -> None:
    place.check(steps(TEXT))


def command_of(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None, name
    return found


def own_commands() -> Iterator[tuple[str, click.Command]]:
    """Commands of the client, with the section that tells of them."""
    yield "Every command", cli
    for name in (*command_line.OWN_COMMANDS, *cli.commands):
        command = command_of(name)
        parts = command.commands.values() if isinstance(command, click.Group) else [command]
        for part in parts:
            yield name, part


def options_of(command: click.Command) -> set[str]:
    return {
        spelling
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for spelling in parameter.opts
    }


@pytest.mark.parametrize(("section", "command"), [*own_commands()], ids=str)
def test_every_option_is_told_of(section: str, command: click.Command) -> None:
    told = SECTIONS.get(section, SECTIONS["Every command"])
    for option in options_of(command):
        assert re.search(rf"`{option}\b", told), f"{command.name}: {option}"


def test_every_option_of_reading_and_writing_that_is_told_of_exists() -> None:
    for name in ("produce", "consume"):
        table = re.findall(r"^\| `(-.*?)` \|", SECTIONS[name], re.MULTILINE)
        table += re.findall(r"^\| (`-.*?`(?:, `-\w`)?) \|", SECTIONS[name], re.MULTILINE)
        told = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(table)))
        assert told == options_of(command_of(name)), name


def test_exit_codes_are_those_of_the_program() -> None:
    codes = re.findall(r"^ {4}(\d+) ", command_line.__doc__ or "", re.MULTILINE)
    told = re.findall(r"^\| (\d+) \|", SECTIONS["Every command"], re.MULTILINE)
    assert told == codes
