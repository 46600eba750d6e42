"""Barriers: reads of the committed index by a round of the voters, without an entry in the log."""

from collections.abc import Iterator

import pytest

from raft_meta.consensus import reads
from raft_meta.consensus.library import Failure, use_clock
from tests.support.clusters.raft_bench import Bench, entries, entry

Outcome = list[tuple[int, Failure | None]]


class _Clock:
    now = 100.0


@pytest.fixture(autouse=True)
def _library_clock() -> Iterator[None]:
    _Clock.now = 100.0
    with use_clock(lambda: _Clock.now):
        yield


def bench(**options: object) -> Bench:
    return Bench(**options)  # type: ignore[arg-type]  # options are Bench's own


def wait(made: Bench, seconds: float) -> None:
    _Clock.now = made.now = made.now + seconds
    made.core.tick()


def barrier(made: Bench) -> tuple[int | None, Outcome]:
    got: Outcome = []
    ticket = made.core.barrier(lambda index, failure: got.append((index, failure)))
    made.core.tick()
    return ticket, got


def leader(*, is_current: bool = True, **options: object) -> Bench:
    """Return a leader of term 4 with the entries up to 10, and its no-op at 11, which is committed if it is current."""
    made = bench(**options)
    made.append(previous=entry(1), new=entries(2, 10))
    made.core.tick()
    made.lead(term=4)
    if is_current:
        made.acknowledge(1, 12, term=4)
        made.core.tick()
    made.sent.clear()
    return made


def follower(commit: int = 5, **options: object) -> Bench:
    """Return a follower of node 1 in term 1."""
    made = bench(**options)
    made.append(previous=entry(1), new=entries(2, 10), commit=commit)
    made.core.tick()
    made.sent.clear()
    return made


def confirm(made: Bench, node_id: int, number: int, term: int = 4) -> None:
    made.core.receive(node_id, {"type": "read_round_reply", "term": term, "round": number})
    made.core.tick()


def answer(made: Bench, number: int, index: int) -> None:
    made.core.receive(1, {"type": "read_index_reply", "number": number, "index": index})
    made.core.tick()


# -- the leader


def test_a_majority_that_confirms_the_round_ends_the_barrier_without_an_entry() -> None:
    made = leader()
    _, got = barrier(made)
    assert {"type": "read_round", "term": 4, "round": 1} in [sent for _, sent in made.sent]
    assert got == []
    confirm(made, 1, 1)
    assert got == [(11, None)]
    assert made.last_index == 11


@pytest.mark.parametrize(("number", "term"), [(0, 4), (1, 3), (1, 5)])
def test_a_confirmation_of_another_round_or_term_does_not_count(number: int, term: int) -> None:
    made = leader()
    _, got = barrier(made)
    confirm(made, 1, number, term)
    assert got == []


def test_a_voter_counts_once() -> None:
    made = leader(voters=5, is_current=False)
    for node in (1, 2):
        made.acknowledge(node, 12, term=4)
    made.core.tick()
    _, got = barrier(made)
    confirm(made, 1, 1)
    confirm(made, 1, 1)
    assert got == []
    confirm(made, 2, 1)
    assert got == [(11, None)]


def test_a_confirmation_holds_for_the_rounds_before_it() -> None:
    made = leader()
    first, second = barrier(made)[1], barrier(made)[1]
    confirm(made, 2, 2)
    assert (first, second) == ([(11, None)], [(11, None)])


def test_a_round_does_not_serve_barriers_that_came_after_it() -> None:
    made = leader()
    first, second = barrier(made)[1], barrier(made)[1]
    confirm(made, 2, 1)
    assert (first, second) == ([(11, None)], [])


def test_a_new_leader_waits_until_an_entry_of_its_term_is_committed() -> None:
    made = leader(is_current=False)
    _, got = barrier(made)
    assert made.take("read_round") == []
    made.acknowledge(1, 12, term=4)
    made.core.tick()
    assert len(made.take("read_round")) == 2
    confirm(made, 1, 1)
    assert got == [(11, None)]


def test_a_single_voter_answers_at_once() -> None:
    made = bench(voters=1)
    made.lead(term=4)
    made.core.tick()
    _, got = barrier(made)
    assert got == [(made.last_index, None)]


def test_a_round_without_an_answer_is_repeated() -> None:
    made = leader()
    _, got = barrier(made)
    made.sent.clear()
    wait(made, 0.3)
    assert made.take("read_round") == []
    wait(made, 0.3)
    assert [sent["round"] for sent in made.take("read_round")] == [2, 2]
    confirm(made, 2, 2)
    assert got == [(11, None)]


def test_the_rounds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "ROUNDS_MAX", 2)
    made = leader()
    outcomes = [barrier(made)[1] for _ in range(3)]
    assert max(int(str(sent["round"])) for sent in made.take("read_round")) == 2
    confirm(made, 1, 2)
    assert [bool(got) for got in outcomes] == [True, True, False]
    confirm(made, 1, 3)
    assert outcomes[2] == [(11, None)]


def test_a_leader_of_a_later_term_is_asked_again() -> None:
    made = leader()
    _, got = barrier(made)
    made.append(previous=entry(10), new=[], leader=2, term=5)
    made.core.tick()
    assert got == []
    assert [(to, sent) for to, sent in made.sent if sent["type"] == "read_index"] == [
        (2, {"type": "read_index", "number": 2})
    ]


def test_other_nodes_get_their_answers_by_number() -> None:
    made = leader()
    made.core.connected(7)
    for node, number in ((2, 31), (7, 4)):
        made.core.receive(node, {"type": "read_index", "number": number})
    made.core.tick()
    made.sent.clear()
    confirm(made, 1, 1)
    assert [item for item in made.sent if item[1]["type"] == "read_index_reply"] == [
        (2, {"type": "read_index_reply", "number": 31, "index": 11}),
        (7, {"type": "read_index_reply", "number": 4, "index": 11}),
    ]


def test_a_process_that_is_new_gets_no_answers_of_the_former_one() -> None:
    made = leader()
    made.core.receive(2, {"type": "read_index", "number": 1})
    made.core.tick()
    made.core.disconnected(2)
    made.core.connected(2)
    made.sent.clear()
    confirm(made, 1, 1)
    assert made.take("read_index_reply") == []


# -- the voters


def test_a_voter_confirms_the_term_that_it_is_in() -> None:
    made = follower()
    for term in (1, 0, 2):
        made.core.receive(1, {"type": "read_round", "term": term, "round": 7})
    assert made.take("read_round_reply") == [{"type": "read_round_reply", "term": 1, "round": 7}]


def test_a_learner_confirms_nothing() -> None:
    made = follower(is_learner=True)
    made.core.receive(1, {"type": "read_round", "term": 1, "round": 7})
    assert made.take("read_round_reply") == []


# -- nodes that ask


def test_a_follower_asks_the_leader_and_waits_until_it_has_applied_the_index() -> None:
    made = follower()
    _, got = barrier(made)
    assert made.take("read_index") == [{"type": "read_index", "number": 1}]
    answer(made, 1, 7)
    assert got == []
    made.append(previous=entry(10), new=[], commit=8)
    made.core.tick()
    assert got == [(8, None)]


def test_barriers_that_wait_together_are_one_question() -> None:
    made = bench()
    outcomes = [barrier(made)[1] for _ in range(3)]
    assert made.take("read_index") == []
    made.append(previous=entry(1), new=entries(2, 10), commit=9)
    assert len(made.take("read_index")) == 1
    answer(made, 1, 9)
    assert outcomes == [[(9, None)]] * 3


def test_a_node_that_does_not_lead_ignores_questions() -> None:
    made = follower()
    made.core.receive(2, {"type": "read_index", "number": 1})
    made.core.tick()
    made.lead(term=4)
    made.acknowledge(1, 12, term=4)
    made.core.tick()
    confirm(made, 1, 1)
    assert made.take("read_index_reply") == []


def test_a_lost_connection_or_a_long_silence_makes_the_follower_ask_again() -> None:
    made = follower()
    _, got = barrier(made)
    made.core.disconnected(1)
    made.core.connected(1)
    made.append(previous=entry(10), new=[], commit=5)
    made.core.tick()
    wait(made, 0.6)
    assert [sent["number"] for sent in made.take("read_index")] == [1, 2, 3]
    for number in (1, 2):
        answer(made, number, 5)
    assert got == []
    answer(made, 3, 5)
    assert got == [(5, None)]


def test_a_barrier_that_was_withdrawn_is_not_called_back() -> None:
    made = follower()
    ticket, got = barrier(made)
    assert ticket is not None
    assert made.core.withdraw_barrier(ticket)
    assert not made.core.withdraw_barrier(ticket)
    answer(made, 1, 5)
    assert got == []


def test_too_many_barriers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "QUEUE_LENGTH_MAX", 1)
    made = bench()
    assert barrier(made)[1] == []
    assert barrier(made) == (None, [(0, Failure.QUEUE_FULL)])
