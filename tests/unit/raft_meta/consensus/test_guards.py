"""One scenario a guard: it holds with all guards and breaks without that one."""

from collections.abc import Callable, Iterator

import pytest

from milena.model.errors import CorruptLogError
from raft_meta.consensus.guards import Guard
from raft_meta.consensus.library import Failure, use_clock
from raft_meta.consensus.messages import Message
from raft_meta.consensus.snapshot import SnapshotMeta, write_snapshot
from tests.support.clusters.raft_bench import DIRECTORY, Bench, entries, entry, snapshot_bytes

Scenario = Callable[[frozenset[Guard]], bool]
SCENARIOS: dict[Guard, Scenario] = {}


def scenario(guard: Guard) -> Callable[[Scenario], Scenario]:
    """Register the scenario of a guard; it returns whether all went well."""

    def register(function: Scenario) -> Scenario:
        SCENARIOS[guard] = function
        return function

    return register


class _Clock:
    now = 100.0


@pytest.fixture(autouse=True)
def _library_clock() -> Iterator[None]:
    _Clock.now = 100.0
    with use_clock(lambda: _Clock.now):
        yield


def bench(without: frozenset[Guard], **options: object) -> Bench:
    made = Bench(without=without, **options)  # type: ignore[arg-type]  # options are Bench's own
    _Clock.now = made.now
    return made


def pass_time(made: Bench, seconds: float) -> None:
    for _ in range(int(seconds / 0.05)):
        made.now += 0.05
        _Clock.now = made.now
        made.core.tick()


def follower(without: frozenset[Guard], last: int = 10, **options: object) -> Bench:
    """A follower of node 1 in term 1 that holds entries up to ``last`` and was told of no commit."""
    made = bench(without, **options)
    made.append(previous=entry(1), new=entries(2, last))
    made.core.tick()
    made.sent.clear()
    return made


@scenario(Guard.SYNC)
def acknowledged_entries_are_on_disk(without: frozenset[Guard]) -> bool:
    made = bench(without)
    dirty: list[bool] = []
    made.on_send = lambda _message: dirty.append(made.wal.is_dirty)
    made.append(previous=entry(1), new=entries(2, 5))
    made.core.tick()
    return dirty == [False]


@scenario(Guard.OWNSYNC)
def a_single_voter_applies_what_is_on_disk(without: frozenset[Guard]) -> bool:
    made = bench(without, voters=1)
    pass_time(made, 1.5)
    dirty: list[bool] = []
    made.machine.on_apply = lambda: dirty.append(made.wal.is_dirty)
    made.core.propose(b"x", lambda _response, _failure: None)
    made.core.tick()
    return dirty == [False]


@scenario(Guard.SNAPSYNC)
def a_new_snapshot_survives_a_power_cut(without: frozenset[Guard]) -> bool:
    made = follower(without)
    made.append(previous=entry(10), new=[], commit=10)
    made.core.tick()
    made.core.force_compaction()
    made.core.tick()
    made.finish_jobs()
    made.files.crash(keep="none")
    try:
        made.boot()
    except CorruptLogError:
        return False
    return made.core.library.applied_index == 10


@scenario(Guard.ALIGN)
def a_crash_before_the_log_is_shortened_keeps_its_tail(without: frozenset[Guard]) -> bool:
    made = follower(without)
    meta = SnapshotMeta(last=entry(5), previous=entry(4))
    path = made.snapshots.local_path
    write_snapshot(made.files, path, meta, [b"2", b"3", b"4", b"5"])
    made.files.rename_durably(path, f"{DIRECTORY}/snapshot")
    made.files.crash(keep="none")
    made.boot()
    assert made.core.library.applied_index == 5
    return made.last_index == 10


@scenario(Guard.ACKTERM)
def an_acknowledgement_of_an_earlier_term_does_not_count(without: frozenset[Guard]) -> bool:
    made = follower(without)
    made.lead(term=4)
    made.acknowledge(2, 12, term=1)
    return made.core.library.match_index(2) == 0


@scenario(Guard.TRIM)
def entries_that_are_known_truncate_nothing(without: frozenset[Guard]) -> bool:
    made = follower(without)
    made.append(previous=entry(1), new=entries(2, 5))
    return made.last_index == 10


@scenario(Guard.CAP)
def an_unverified_tail_is_not_committed(without: frozenset[Guard]) -> bool:
    made = follower(without)
    # The leader of term 2 matches up to 5 only, and has committed 10 of its own.
    made.append(previous=entry(5), new=[], leader=2, term=2, commit=10)
    return made.core.library.commit_index <= 5


@scenario(Guard.CHUNKCOMMIT)
def a_snapshot_piece_commits_nothing(without: frozenset[Guard]) -> bool:
    made = follower(without)
    made.piece(b"some", leader=2, term=2, commit=10)
    return made.core.library.commit_index == 1


@scenario(Guard.PREVOTE)
def a_node_that_nobody_answers_does_not_raise_the_term(without: frozenset[Guard]) -> bool:
    made = follower(without)
    pass_time(made, 5)
    return made.core.library.term == 1


@scenario(Guard.STEPDOWN)
def a_stale_leader_is_told_the_newer_term(without: frozenset[Guard]) -> bool:
    made = follower(without)
    made.core.library.set_term(5, None)
    made.append(previous=entry(10), new=[], term=3)
    return [answer["term"] for answer in made.take("next_node_idx")] == [5]


@scenario(Guard.VOTES)
def a_repeated_vote_counts_once(without: frozenset[Guard]) -> bool:
    made = bench(without, voters=5)
    pass_time(made, 1.5)
    question = made.take("pre_vote")[-1]
    for voter in (1, 2):
        reply = {"type": "pre_vote_reply", "term": 0, "round": question["round"], "ok": True}
        made.core.receive(voter, reply)
    pass_time(made, 0.05)
    assert made.core.library.term == 1
    for _ in range(2):
        made.core.receive(1, {"type": "response_vote", "term": 1})
    return not made.core.library.is_leader


def forwarded(made: Bench) -> tuple[int, list[Failure | None]]:
    """A command on its way to leader 1: its request id, and where the outcome goes."""
    outcome: list[Failure | None] = []
    made.core.propose(b"x", lambda _response, failure: outcome.append(failure))
    (message,) = made.take("apply_command")
    request_id = message["request_id"]
    assert isinstance(request_id, int)
    return request_id, outcome


@scenario(Guard.LOST)
def a_forwarded_command_is_answered_when_the_connection_drops(
    without: frozenset[Guard],
) -> bool:
    made = follower(without)
    _, outcome = forwarded(made)
    made.core.disconnected(1)
    return outcome == [Failure.LEADER_CHANGED]


@scenario(Guard.ORPHANS)
def a_command_that_a_snapshot_skipped_is_answered(without: frozenset[Guard]) -> bool:
    made = follower(without)
    request_id, outcome = forwarded(made)
    answer = {"type": "apply_command_response", "request_id": request_id}
    made.core.receive(1, {**answer, "log_idx": 15, "log_term": 1})
    data = snapshot_bytes(20)
    made.piece(data, is_last=True)
    return outcome == [Failure.UNKNOWN_OUTCOME]


@scenario(Guard.SNAPBACK)
def an_older_snapshot_does_not_take_the_node_back(without: frozenset[Guard]) -> bool:
    made = follower(without)
    made.append(previous=entry(10), new=[], commit=10)
    made.core.tick()
    made.piece(snapshot_bytes(5), is_last=True)
    return made.core.library.applied_index == 10


@scenario(Guard.SUFFIX)
def a_suffix_behind_the_snapshot_is_kept(without: frozenset[Guard]) -> bool:
    made = follower(without)
    made.piece(snapshot_bytes(5), is_last=True)
    assert made.core.library.applied_index == 5
    return made.last_index == 10


@scenario(Guard.SUFFIXCAP)
def an_installation_does_not_commit_the_suffix(without: frozenset[Guard]) -> bool:
    made = follower(without)
    made.piece(snapshot_bytes(5), is_last=True, commit=10)
    return made.core.library.commit_index == 5


@scenario(Guard.CHUNKS)
def a_gap_between_pieces_ends_the_transfer(without: frozenset[Guard]) -> bool:
    made = follower(without)
    data = snapshot_bytes(20)
    made.piece(data[:30])
    made.take("next_node_idx")
    made.piece(data[40:60], offset=40)
    return made.take("next_node_idx") == []


def made_answer(next_index: int) -> Message:
    """The answer to a piece so far: ``next_index - 1`` bytes were received."""
    return {
        "type": "next_node_idx",
        "term": 1,
        "next_node_idx": next_index,
        "reset": False,
        "success": False,
        "learner": False,
    }


@scenario(Guard.CRC)
def a_damaged_snapshot_is_not_acknowledged(without: frozenset[Guard]) -> bool:
    made = follower(without)
    data = bytearray(snapshot_bytes(20))
    data[60] ^= 1
    made.piece(bytes(data), is_last=True)
    return not any(answer["success"] for answer in made.take("next_node_idx"))


def leader_with_snapshot(without: frozenset[Guard]) -> Bench:
    """Leads term 4 from a snapshot at 40; node 2 needs it, node 1 does not."""
    made = follower(without, last=40)
    made.append(previous=entry(40), new=[], commit=40)
    made.core.tick()
    made.core.force_compaction()
    made.core.tick()
    made.finish_jobs()
    assert made.wal.entries[0][1] == 39
    made.lead(term=4)
    made.acknowledge(2, 1, term=4, success=False, reset=True)
    made.sent.clear()
    return made


def pieces(made: Bench) -> list[tuple[bool, int]]:
    """(is first, offset) of the pieces sent to node 2."""
    found = [
        message["serialized"]
        for node_id, message in made.sent
        if node_id == 2 and message.get("serialized") is not None
    ]
    made.sent.clear()
    return [(piece[1], piece[4]) for piece in found]  # type: ignore[index]  # a chunk


@scenario(Guard.CANCEL)
def a_transfer_starts_over_on_a_new_connection(without: frozenset[Guard]) -> bool:
    made = leader_with_snapshot(without)
    made.core.tick()
    assert pieces(made)[0] == (True, 0)
    made.core.disconnected(2)
    made.core.connected(2)
    made.core.library.send_soon()
    made.core.tick()
    return pieces(made)[:1] == [(True, 0)]


@scenario(Guard.BUSY)
def a_round_sends_no_more_than_the_window(without: frozenset[Guard]) -> bool:
    made = leader_with_snapshot(without)
    made.core.tick()
    return len(pieces(made)) == 2


@scenario(Guard.TAIL)
def no_compaction_while_a_snapshot_is_sent(without: frozenset[Guard]) -> bool:
    made = leader_with_snapshot(without)
    made.core.tick()
    made.acknowledge(1, 42, term=4)
    made.core.tick()
    assert made.core.library.applied_index == 41
    made.core.force_compaction()
    made.core.tick()
    return not made.jobs


@scenario(Guard.SERRACE)
def a_late_local_snapshot_does_not_replace_a_newer_one(without: frozenset[Guard]) -> bool:
    made = follower(without)
    made.append(previous=entry(10), new=[], commit=8)
    made.core.tick()
    made.core.force_compaction()
    made.core.tick()
    made.piece(snapshot_bytes(20), is_last=True)
    made.finish_jobs()
    assert made.snapshots.meta is not None
    return made.snapshots.meta.index == 20


@scenario(Guard.REQID)
def an_answer_to_a_former_lifes_request_is_ignored(without: frozenset[Guard]) -> bool:
    made = bench(without)
    made.append(previous=entry(1), new=[])
    _, outcome = forwarded(made)
    answer: Message = {"type": "apply_command_response", "request_id": 1}
    made.core.receive(1, {**answer, "log_idx": 2, "log_term": 1})
    made.append(previous=entry(1), new=[entry(2)], commit=2)
    made.core.tick()
    return outcome == []


@scenario(Guard.HINT)
def a_mismatch_is_answered_with_where_to_go_on(without: frozenset[Guard]) -> bool:
    made = follower(without)
    made.append(previous=entry(10), new=[], commit=5)
    made.core.tick()
    made.sent.clear()
    made.append(previous=entry(9, term=3), new=[], leader=2, term=3)
    return made.take("next_node_idx")[0]["next_node_idx"] == 6


@scenario(Guard.NEXTBACK)
def a_late_acknowledgement_keeps_the_pipeline(without: frozenset[Guard]) -> bool:
    made = follower(without)
    made.lead(term=4)
    assert made.core.library.next_index(2) == 12
    made.acknowledge(2, 6, term=4)
    return made.core.library.next_index(2) == 12


@scenario(Guard.CHUNKACK)
def a_piece_is_answered(without: frozenset[Guard]) -> bool:
    made = follower(without)
    made.piece(snapshot_bytes(20)[:30])
    return made.take("next_node_idx") == [made_answer(31)]


@scenario(Guard.LEARNER)
def a_voter_without_its_directory_gives_no_vote(without: frozenset[Guard]) -> bool:
    made = bench(without, is_learner=True)
    question = {"type": "request_vote", "term": 7, "last_log_index": 9, "last_log_term": 6}
    made.core.receive(1, question)
    return made.take("response_vote") == []


ELSEWHERE = {Guard.ONECONN}
"""Held by the transport: ``test_transport`` replaces a connection and listens to the older one."""


@pytest.mark.parametrize("guard", SCENARIOS, ids=str)
def test_scenario_holds_with_all_guards(guard: Guard) -> None:
    assert SCENARIOS[guard](frozenset())


@pytest.mark.parametrize("guard", SCENARIOS, ids=str)
def test_scenario_breaks_without_its_guard(guard: Guard) -> None:
    assert not SCENARIOS[guard](frozenset({guard}))


def test_every_guard_has_its_scenario() -> None:
    assert set(SCENARIOS) | ELSEWHERE == set(Guard)
