"""Measure the CPU time of this process and of all processes that it started, from /proc."""

import os
from pathlib import Path

_UTIME, _CSTIME = 11, 14
"""The indexes of the first and last of four fields in /proc/*/stat: own user and system time, ended children's."""


def tree_cpu_s(root: int | None = None) -> float:
    """Return the CPU seconds of a process and its descendants, including ended ones; ``root`` None is this process."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text()
        except OSError:
            # The process ended meanwhile, so its time is now in its parent's figures.
            continue
        # The command is in parentheses, and may itself contain spaces and parentheses.
        fields = text[text.rindex(")") + 2 :].split()
        process = int(folder.name)
        parents[process] = int(fields[1])
        ticks[process] = sum(map(int, fields[_UTIME : _CSTIME + 1]))
    wanted = os.getpid() if root is None else root
    total = sum(spent for process, spent in ticks.items() if _descends(process, wanted, parents))
    return total / os.sysconf("SC_CLK_TCK")


def _descends(process: int, root: int, parents: dict[int, int]) -> bool:
    while process > 1:
        if process == root:
            return True
        process = parents.get(process, 0)
    return False
