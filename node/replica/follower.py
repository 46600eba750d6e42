"""Decisions of a follower of one partition when its log diverges from the leader's. Pure.

Source: KIP-101 (truncate by epoch, not to the high watermark), KIP-279, KIP-595 (the fetch itself finds out).
"""

from collections.abc import Callable
from dataclasses import dataclass

from raft_meta.machine.image import Partition

EpochEnd = Callable[[int], tuple[int, int]]
"""Takes a leader epoch; returns (the log's greatest epoch <= it, the end offset of that epoch, exclusive)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """A decision to cut the log to ``offset`` (its new end, exclusive). ``is_allowed``: False if it must not be cut."""

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

    ``diverging_epoch`` is the greatest epoch of the leader's log that is not above the follower's last epoch. In the
    leader's log, this epoch ends at ``diverging_end``. If the follower's log has the same epoch, the logs agree up to
    the smaller of the two ends of that epoch. If not, they agree at most up to the end of the follower's greatest
    epoch below it. The next fetch then compares again.

    Below the follower's high watermark everything is committed, so a cut there is not allowed. Exception: after the
    follower's last epoch there was an unclean election, which gave up committed records on purpose.
    """
    own_epoch, own_end = epoch_end(diverging_epoch)
    offset = min(own_end, diverging_end) if own_epoch == diverging_epoch else own_end
    offset = max(log_start, min(offset, log_end))
    is_unclean = partition.unclean_epoch > last_epoch
    return Truncation(
        offset=offset, is_allowed=offset >= min(high_watermark, log_end) or is_unclean
    )
