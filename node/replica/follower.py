"""Decisions of a follower of one partition when its log diverges from the leader's. Pure.

Source: KIP-101 (truncate by epoch, not to the high watermark), KIP-279, KIP-595 (the fetch itself finds out).
"""

from collections.abc import Callable
from dataclasses import dataclass

from raft_meta.machine.image import Partition

EpochEnd = Callable[[int], tuple[int, int]]
"""A function from an epoch to (the log's greatest epoch <= it, the end offset of that epoch, exclusive)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """A cut of the log to ``offset`` (exclusive end), and whether it is allowed."""

    offset: int
    is_allowed: bool


def plan_truncation(
    *,
    diverging_epoch: int,
    diverging_end: int,
    epoch_end: EpochEnd,
    log_start: int,
    log_end: int,
    high_watermark: int,
    last_epoch: int,
    partition: Partition,
) -> Truncation:
    """Return where to cut the follower's log.

    The leader's greatest epoch <= the follower's last one is ``diverging_epoch``, and ends at ``diverging_end``. If the
    follower's log has that epoch, the logs agree up to the smaller of its two ends. If not, they agree at most up to
    the end of the follower's greatest epoch below it, and the next fetch tells more.

    Below the follower's high watermark everything is committed, and a cut there is not allowed. The exception is an
    unclean election since the follower's last epoch, which gave up committed records on purpose.
    """
    own_epoch, own_end = epoch_end(diverging_epoch)
    offset = min(own_end, diverging_end) if own_epoch == diverging_epoch else own_end
    offset = max(log_start, min(offset, log_end))
    is_unclean = partition.unclean_epoch > last_epoch
    return Truncation(
        offset=offset, is_allowed=offset >= min(high_watermark, log_end) or is_unclean
    )
