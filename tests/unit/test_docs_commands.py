"""Every command that a document names exists, with the options that it gives."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from milena.cli import cli

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
HISTORY = "CHANGELOG.md"
"""It names options that were renamed since."""
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
END_OF_COMMAND = {"|", "||", "&&", "&", ";", ">", "2>&1", "<", ">>"}
PLACEHOLDER = re.compile(r"[A-Z_-]+|…|\.\.\.")


def code(text: str) -> Iterator[str]:
    """Lines of shell blocks, and code within lines that stands for a command."""
    for block in re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        joined = block.replace("\\\n", " ")
        yield from (line.removeprefix("$ ").removeprefix("> ") for line in joined.splitlines())
    yield from re.findall(
        r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    )


def commands(text: str, program: str) -> Iterator[list[str]]:
    """The words of each command of ``program``, up to a pipe."""
    for line in code(text):
        for found in re.finditer(rf"(?:^|[|&(] ?|-- )(?:\S*/)?{program} ", line):
            try:
                words = shlex.split(line[found.end() :], comments=True)
            except ValueError:  # the quote began before the command
                continue
            end = next((n for n, word in enumerate(words) if word in END_OF_COMMAND), len(words))
            yield words[:end]


def option_names(command: click.Command) -> set[str]:
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


def complaint(words: list[str]) -> str | None:
    """Return what is wrong with a command of ``milena``."""
    command: click.Command = cli
    allowed = option_names(cli) | {"--help", "-h", "--version"}
    values = False
    for word in words:
        if word.startswith("$("):
            break
        if re.match("--?[a-z]", word):
            name = word.partition("=")[0]
            if name not in allowed and len(name) > 1:
                return f"{command.name} has no option {name}"
            values = True
        elif isinstance(command, click.Group) and not PLACEHOLDER.fullmatch(word) and not values:
            found = command.get_command(click.Context(command), word)
            if found is None:
                return f"{command.name} has no command {word}"
            command = found
            allowed |= option_names(command)
        else:
            values = False
    return None


@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if d.name != HISTORY], ids=lambda path: path.name
)
def test_commands_of_milena_exist_with_their_options(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    wrong = [(words, found) for words in commands(text, "milena") if (found := complaint(words))]
    assert not wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_modules_that_are_run_exist(document: Path) -> None:
    for words in commands(document.read_text(encoding="utf-8"), "python3?"):
        if words[:1] == ["-m"] and words[1].split(".")[0] not in ("pip", "venv", "pytest"):
            assert importlib.util.find_spec(words[1]), words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_variables_that_make_gets_exist(document: Path) -> None:
    for words in commands(document.read_text(encoding="utf-8"), "make"):
        for word in words:
            name, is_given, _ = word.partition("=")
            assert not is_given or re.search(rf"\b{name}\b", MAKEFILE), words


def test_a_wrong_command_is_found() -> None:
    assert (
        complaint(["topics", "create", "x", "--partition", "2"])
        == "create has no option --partition"
    )
    assert complaint(["topic", "list"]) == "cli has no command topic"
    assert complaint(["--url", "http://a:1", "topics", "list"]) is None
    assert list(commands("```sh\n$ a | milena status --json  # why\n```\n", "milena")) == [
        ["status", "--json"]
    ]
