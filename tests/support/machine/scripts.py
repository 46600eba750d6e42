"""Golden scripts: text files with commands for a core and their expected output.

A script is a sequence of blocks, separated by blank lines:

    # A sentence that says which rule this block proves.
    command argument name=value
    !command that must fail
    ---
    expected output

State carries over from block to block. With ``REWRITE_SCRIPTS=1`` in the environment the expected output is written
again; review the difference like code. Rules: every block starts with a comment, a script has at most 60 lines, and
output shows changed fields, never whole states.
"""

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from milena.model.errors import MilenaError

LINES_MAX = 60
Execute = Callable[[str], list[str]]
"""A function that runs one command line and returns its output, or raises a MilenaError."""


@dataclass(frozen=True)
class Block:
    comments: tuple[str, ...]
    commands: tuple[str, ...]
    expected: tuple[str, ...]


def parse_script(text: str) -> list[Block]:
    blocks = []
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        assert "---" in lines, f"a block without '---': {lines[0]!r}"
        cut = lines.index("---")
        comments = tuple(line for line in lines[:cut] if line.startswith("#"))
        commands = tuple(line for line in lines[:cut] if not line.startswith("#"))
        assert lines[0].startswith("#"), f"a block opens with what it proves: {lines[0]!r}"
        assert commands, f"a block without commands: {lines[0]!r}"
        blocks.append(Block(comments, commands, tuple(lines[cut + 1 :])))
    return blocks


def render_script(blocks: list[Block]) -> str:
    paragraphs = (
        "\n".join([*block.comments, *block.commands, "---", *block.expected]) for block in blocks
    )
    return "\n\n".join(paragraphs) + "\n"


def run_block(block: Block, execute: Execute) -> Block:
    """Run a block's commands; return the block with their present output."""
    printed: list[str] = []
    for line in block.commands:
        must_fail = line.startswith("!")
        try:
            output = execute(line.removeprefix("!"))
        except MilenaError as error:
            if not must_fail:
                raise AssertionError(f"{line!r} failed: {error.code}: {error.message}") from error
            output = [f"{error.code}: {error.message}"]
        else:
            assert not must_fail, f"{line!r} was to fail, and printed {output}"
        printed.extend(output)
    return Block(block.comments, block.commands, tuple(printed))


def run_script(path: Path, execute: Execute) -> None:
    """Run a script, and check its output, or rewrite it."""
    text = path.read_text()
    actual = render_script([run_block(block, execute) for block in parse_script(text)])
    if os.environ.get("REWRITE_SCRIPTS") == "1":
        path.write_text(actual)
        return
    if actual != text:
        difference = difflib.unified_diff(
            text.splitlines(), actual.splitlines(), path.name, "now", lineterm=""
        )
        raise AssertionError("\n".join(difference))
    length = len(text.splitlines())
    assert length <= LINES_MAX, f"{path.name} has {length} lines; split it"
