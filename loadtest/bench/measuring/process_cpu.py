"""Measure the CPU time of this process and of all processes that it started, from /proc."""

import os
from contextlib import suppress
from pathlib import Path

_UTIME, _CSTIME = 11, 14
"""The indexes of the first and last of four fields in /proc/*/stat: own user and system time, ended children's."""


def tree_cpu_s(root: int | None = None) -> float:
    """Return the CPU seconds of a process and its descendants, including ended ones; ``root`` None is this process."""
    found = tree(os.getpid() if root is None else root)
    ticks = sum(sum(map(int, fields[_UTIME : _CSTIME + 1])) for fields in found.values())
    return ticks / os.sysconf("SC_CLK_TCK")


def tree(root: int) -> dict[int, list[str]]:
    """Return a process and its descendants, each with the fields of its /proc/*/stat after the command."""
    found: dict[int, list[str]] = {}
    for folder in Path("/proc").iterdir():
        # A process may end meanwhile. Its time is then in its parent's figures.
        with suppress(OSError):
            if folder.name.isdigit():
                text = (folder / "stat").read_text()
                # The command is in parentheses, and may itself contain spaces and parentheses.
                found[int(folder.name)] = text[text.rindex(")") + 2 :].split()
    parents = {process: int(fields[1]) for process, fields in found.items()}
    return {
        process: fields for process, fields in found.items() if _descends(process, root, parents)
    }


def _descends(process: int, root: int, parents: dict[int, int]) -> bool:
    while process > 1:
        if process == root:
            return True
        process = parents.get(process, 0)
    return False
