"""Decisions of a follower of one partition when its leader says that their logs part. Pure.

Source: KIP-101 (truncate by epoch, not to the high watermark), KIP-279, KIP-595 (the fetch itself finds out).
"""

from collections.abc import Callable
from dataclasses import dataclass

from raft_meta.machine.image import Partition

EpochEnd = Callable[[int], tuple[int, int]]
"""Asked epoch → (greatest epoch <= it that the log has, its end offset, exclusive)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """Cut the log to ``offset`` (exclusive end), and whether that is allowed."""

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
    """Where to cut, when the leader's greatest epoch <= ours is ``diverging_epoch`` and ends at ``diverging_end``.

    When we know that epoch, the logs agree up to the smaller of its two ends. When we do not, they agree at most up
    to the end of our greatest epoch below it; the next fetch tells more.

    Below our own high watermark everything is committed. A leader that wants it gone is wrong, unless an unclean
    election since our last epoch gave up committed records on purpose.
    """
    own_epoch, own_end = epoch_end(diverging_epoch)
    offset = min(own_end, diverging_end) if own_epoch == diverging_epoch else own_end
    offset = max(log_start, min(offset, log_end))
    is_unclean = partition.unclean_epoch > last_epoch
    return Truncation(
        offset=offset, is_allowed=offset >= min(high_watermark, log_end) or is_unclean
    )
