"""Tail: the bytes of a log's last append, kept in memory for the followers that are about to fetch them.

Every follower reads the last append, and mostly nothing else. The tail is set after the append, and dropped by the next
append, a new segment or a cut. So its bytes are always those in the active segment's file. Only small appends are kept,
because a node has thousands of logs. Large appends are kept elsewhere (``uncommitted``), or read from the page cache.
"""

from dataclasses import dataclass

from milena.model.types import NO_OFFSET
from storage.segments.append_plan import AppendRun

TAIL_BYTES_MAX = 16 << 10
"""Limit of a tail. A thousand partitions that are all written to take 16 MB in total."""


@dataclass(slots=True, init=False)
class Tail:
    """Whole batches from ``base_offset`` to ``next_offset`` (exclusive); NO_OFFSET as ``base_offset`` = no batches."""

    base_offset: int
    next_offset: int
    span: bytes

    def __init__(self, base_offset: int, next_offset: int, span: bytes) -> None:
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.span = span


NO_TAIL = Tail(NO_OFFSET, NO_OFFSET, b"")


def tail_of(run: AppendRun) -> Tail:
    """Return the tail with the batches of a run; ``NO_TAIL`` if they are too large."""
    if not run.headers or run.total_bytes > TAIL_BYTES_MAX:
        return NO_TAIL
    return Tail(run.headers[0].base_offset, run.headers[-1].next_offset, b"".join(run.chunks))
