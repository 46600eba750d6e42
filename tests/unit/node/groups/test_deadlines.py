"""Deadlines of groups: the earliest counts, each comes once."""

from milena.model.types import MonotonicMs
from node.groups.deadlines import Deadlines


def due(deadlines: Deadlines, now_ms: int) -> list[str]:
    return list(deadlines.due(MonotonicMs(now_ms)))


def test_the_earliest_time_counts_and_comes_once() -> None:
    deadlines = Deadlines()
    for group_id, at in (("a", 30), ("b", 20), ("a", 10), ("a", 40)):
        deadlines.schedule(group_id, MonotonicMs(at))
    assert due(deadlines, 9) == []
    assert due(deadlines, 25) == ["a", "b"]
    assert due(deadlines, 100) == []


def test_a_group_may_be_scheduled_again_while_it_is_looked_at() -> None:
    deadlines = Deadlines()
    deadlines.schedule("a", MonotonicMs(10))
    seen = []
    for group_id in deadlines.due(MonotonicMs(50)):
        seen.append(group_id)
        if len(seen) < 3:
            deadlines.schedule(group_id, MonotonicMs(10 + 10 * len(seen)))
    assert seen == ["a", "a", "a"]


def test_a_forgotten_group_has_no_deadline() -> None:
    deadlines = Deadlines()
    deadlines.schedule("a", MonotonicMs(10))
    deadlines.forget("a")
    deadlines.forget("b")
    assert due(deadlines, 50) == []
    deadlines.schedule("a", MonotonicMs(60))
    assert due(deadlines, 60) == ["a"]
