"""Measure the CPU time of processes and of all processes that they started."""

from contextlib import suppress

import psutil


def tree(root: int | None = None) -> list[psutil.Process]:
    """Return a process and its descendants, or none if it has ended; ``root`` None is this process."""
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def tree_cpu_s(root: int | None = None) -> float:
    """Return the CPU seconds of a process and its descendants, including ended ones; ``root`` None is this process."""
    total_s = 0.0
    for process in tree(root):
        # A process may end meanwhile. Its time is then in its parent's figures.
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s
