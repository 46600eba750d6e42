"""Rules of truncation (KIP-101, KIP-279, KIP-595)."""

from collections.abc import Callable

from node.replica.follower import Truncation, plan_truncation
from tests.support.clusters.leaders import partition


def log(*epochs: tuple[int, int]) -> Callable[[int], tuple[int, int]]:
    """(epoch, end offset) pairs, ascending."""

    def epoch_end(asked: int) -> tuple[int, int]:
        below = [pair for pair in epochs if pair[0] <= asked]
        return below[-1] if below else (-1, 0)

    return epoch_end


def plan(
    epochs: tuple[tuple[int, int], ...],
    diverging: tuple[int, int],
    *,
    high_watermark: int = 0,
    unclean_epoch: int = -1,
) -> Truncation:
    return plan_truncation(
        diverging_epoch=diverging[0],
        diverging_end=diverging[1],
        epoch_end=log(*epochs),
        log_start=0,
        log_end=epochs[-1][1],
        high_watermark=high_watermark,
        last_epoch=epochs[-1][0],
        partition=partition(unclean_epoch=unclean_epoch),
    )


def test_epoch_that_both_have_is_cut_to_its_smaller_end() -> None:
    assert plan(((1, 10), (2, 20)), (2, 15)).offset == 15
    assert plan(((1, 10), (2, 20)), (2, 25)).offset == 20


def test_epoch_that_only_we_have_is_cut_away() -> None:
    assert plan(((1, 10), (3, 20)), (1, 10)).offset == 10


def test_epoch_that_only_the_leader_has_cuts_to_our_greatest_below_it() -> None:
    # We have 1 and 4, the leader's greatest epoch <= 4 is 3: the logs part at the end of our epoch 1 at the latest.
    assert plan(((1, 10), (4, 20)), (3, 18)).offset == 10


def test_committed_records_are_not_cut() -> None:
    assert not plan(((1, 10), (2, 20)), (1, 10), high_watermark=12).is_allowed
    assert plan(((1, 10), (2, 20)), (1, 10), high_watermark=10).is_allowed


def test_unclean_election_since_our_last_epoch_allows_it() -> None:
    assert plan(((1, 10), (2, 20)), (1, 10), high_watermark=12, unclean_epoch=3).is_allowed
    assert not plan(((1, 10), (2, 20)), (1, 10), high_watermark=12, unclean_epoch=2).is_allowed
