"""CPU time of this process and all that it started, from /proc."""

import os
from pathlib import Path

_UTIME, _CSTIME = 11, 14
"""Fields of /proc/*/stat behind the command: user, system, and the same of children that have ended."""


def tree_cpu_s(root: int | None = None) -> float:
    """CPU seconds of a process (this one) and its descendants, those that have ended included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text()
        except OSError:
            # It ended meanwhile; its parent has its time now.
            continue
        # The command stands in parentheses and may hold anything.
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
