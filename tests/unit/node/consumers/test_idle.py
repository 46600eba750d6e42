"""Rules of idle clocks: who was not heard of for too long, and who has a call under way is not."""

from node.consumers.consumer_sessions import IdleClocks

A, B, C = ("g", "a"), ("g", "b"), ("h", "c")


def clocks() -> IdleClocks:
    idle = IdleClocks(100)
    idle.keep([A, B, C], 0)
    return idle


def test_those_not_heard_of_longest_first() -> None:
    idle = clocks()
    idle.hear(A, 10)
    assert idle.expired(99, 9) == []
    assert idle.expired(100, 9) == [B, C]
    assert idle.expired(110, 9) == [B, C, A]
    assert idle.expired(110, 1) == [B]


def test_a_call_under_way_keeps_it_and_its_time_counts_from_the_end() -> None:
    idle = clocks()
    idle.begin(A, 0)
    idle.begin(A, 0)
    idle.end(A, 50)
    assert A not in idle.expired(1_000, 9)
    idle.end(A, 1_000)
    assert A not in idle.expired(1_099, 9)
    assert A in idle.expired(1_100, 9)


def test_who_comes_has_full_time_and_who_stays_keeps_what_is_left() -> None:
    idle = clocks()
    idle.keep([A, ("g", "new")], 50)
    assert len(idle) == 2
    assert idle.expired(100, 9) == [A]
    assert idle.expired(150, 9) == [A, ("g", "new")]


def test_who_is_forgotten_while_called_does_not_come_back() -> None:
    idle = clocks()
    idle.begin(A, 0)
    idle.keep([B, C], 0)
    idle.end(A, 10)
    assert A not in idle
    assert list(idle) == [B, C]
