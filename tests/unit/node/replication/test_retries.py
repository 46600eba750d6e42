"""How often a leader that fails is tried, and how often that is logged."""

from node.config.budgets import RETRY_MS, UNREACHABLE_RETRY_MS_MAX
from node.replication.retries import (
    LOGGED_EVERY_S,
    LeaderRetries,
)


def pauses(retries: LeaderRetries, count: int, *, took_s: float = 0.0) -> list[float]:
    """Of tries one after the other that do not reach the node, each after so long."""
    found, now_s = [], 100.0
    for _ in range(count):
        retries.begin(now_s)
        now_s += took_s
        found.append(retries.pause_ms(now_s, is_unreachable=True))
        now_s += found[-1] / 1000
    return found


def test_a_node_that_refuses_connections_is_tried_ever_less_often() -> None:
    assert pauses(LeaderRetries(), 7) == [50, 100, 200, 200, 200, 200, 200]


def test_what_a_connection_took_to_fail_is_waited_no_second_time() -> None:
    assert pauses(LeaderRetries(), 7, took_s=0.125)[-1] == UNREACHABLE_RETRY_MS_MAX - 125
    assert pauses(LeaderRetries(), 7, took_s=2.0)[-1] == RETRY_MS


def test_other_failures_are_tried_again_at_once() -> None:
    retries = LeaderRetries()
    pauses(retries, 7)
    assert retries.pause_ms(200.0, is_unreachable=False) == RETRY_MS


def test_an_answer_and_news_begin_anew() -> None:
    retries = LeaderRetries()
    for begin in (retries.restart, retries.hurry):
        pauses(retries, 7)
        begin()
        assert pauses(retries, 2) == [50, 100]


def test_the_first_failure_is_logged_and_then_a_count_now_and_then() -> None:
    retries = LeaderRetries()
    logged = [(n, count) for n in range(25) if (count := retries.count(100.0 + n))]
    assert logged == [(0, 1), (10, 10), (20, 10)]
    assert LOGGED_EVERY_S == 10
    retries.restart()
    assert retries.count(125.0) == 1
