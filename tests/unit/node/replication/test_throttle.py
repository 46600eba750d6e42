"""The budget of bytes: a rate in the long run, whole batches, and no flood after a pause."""

import pytest

from node.replication.throttle import BURST_S, ByteBudget


@pytest.mark.parametrize("batch_bytes", [1, 30, 10_000])
@pytest.mark.parametrize("rate", [1, 100, 20_000])
def test_the_rate_holds_whatever_the_size_of_batches(rate: int, batch_bytes: int) -> None:
    budget, now_s, sent = ByteBudget(rate, 0.0), 0.0, 0
    while now_s < 20:
        while budget.left(now_s) > 0:
            budget.take(batch_bytes)
            sent += batch_bytes
        wait_s = budget.wait_s()
        assert wait_s > 0
        now_s += wait_s
    slack = batch_bytes + 1 + rate * BURST_S
    assert rate * 20 - slack <= sent <= rate * now_s + slack


def test_a_pause_is_not_followed_by_a_flood() -> None:
    budget = ByteBudget(1_000, 0.0)
    assert budget.left(3_600.0) == 250


def test_what_was_overdrawn_is_made_up_for() -> None:
    budget = ByteBudget(1_000, 0.0)
    budget.take(1_250)
    assert budget.left(1.0) == 0
    assert budget.wait_s() == pytest.approx(0.125)
    assert budget.left(1.125) == 125


def test_a_clock_that_stands_still_earns_nothing() -> None:
    budget = ByteBudget(1_000, 5.0)
    budget.take(250)
    assert budget.left(5.0) == budget.left(4.0) == 0
