"""A scenario per guard of the consensus core. It succeeds with the guard, and fails without it.

``test_guards`` runs each scenario twice: with the real modules, and with copies from which the guard was removed.
"""

from collections.abc import Callable

from milena.model.errors import CorruptLogError
from raft_meta.consensus.library import Failure, use_clock
from raft_meta.consensus.messages import Message
from raft_meta.consensus.snapshot import SnapshotMeta, write_snapshot
from tests.support.clusters.raft_bench import DIRECTORY, Bench, entries, entry, snapshot_bytes

Scenario = Callable[[], bool]
SCENARIOS: dict[str, Scenario] = {}
"""The scenarios, by the guard's name in the list of mutations."""


def scenario(guard: str) -> Callable[[Scenario], Scenario]:
    """Register the scenario of a guard; it returns whether all went well."""

    def register(function: Scenario) -> Scenario:
        SCENARIOS[f"raft-{guard}"] = function
        return function

    return register


def goes_well(name: str) -> bool:
    """Run a scenario; return whether it succeeded."""
    _Clock.now = 100.0
    with use_clock(lambda: _Clock.now):
        return SCENARIOS[name]()


class _Clock:
    now = 100.0


def bench(**options: object) -> Bench:
    made = Bench(**options)  # type: ignore[arg-type]  # options are Bench's own
    _Clock.now = made.now
    return made


def pass_time(made: Bench, seconds: float) -> None:
    for _ in range(int(seconds / 0.05)):
        made.now += 0.05
        _Clock.now = made.now
        made.core.tick()


def follower(last: int = 10, **options: object) -> Bench:
    """Return a follower of node 1 in term 1 that has entries up to ``last`` and knows of no commit."""
    made = bench(**options)
    made.append(previous=entry(1), new=entries(2, last))
    made.core.tick()
    made.sent.clear()
    return made


@scenario("sync")
def acknowledged_entries_are_on_disk() -> bool:
    made = bench()
    dirty: list[bool] = []
    made.on_send = lambda _message: dirty.append(made.wal.is_dirty)
    made.append(previous=entry(1), new=entries(2, 5))
    made.core.tick()
    return dirty == [False]


@scenario("ownsync")
def a_single_voter_applies_what_is_on_disk() -> bool:
    made = bench(voters=1)
    pass_time(made, 1.5)
    dirty: list[bool] = []
    made.machine.on_apply = lambda: dirty.append(made.wal.is_dirty)
    made.core.propose(b"x", lambda _response, _failure: None)
    made.core.tick()
    return dirty == [False]


@scenario("snapsync-local")
def a_new_snapshot_survives_a_power_cut() -> bool:
    made = follower()
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


@scenario("align")
def a_crash_before_the_log_is_shortened_keeps_its_tail() -> bool:
    made = follower()
    meta = SnapshotMeta(last=entry(5), previous=entry(4))
    path = made.snapshots.local_path
    write_snapshot(made.files, path, meta, [b"2", b"3", b"4", b"5"])
    made.files.rename_durably(path, f"{DIRECTORY}/snapshot")
    made.files.crash(keep="none")
    made.boot()
    assert made.core.library.applied_index == 5
    return made.last_index == 10


@scenario("ackterm")
def an_acknowledgement_of_an_earlier_term_does_not_count() -> bool:
    made = follower()
    made.lead(term=4)
    made.acknowledge(2, 12, term=1)
    return made.core.library.match_index(2) == 0


@scenario("trim")
def entries_that_are_known_truncate_nothing() -> bool:
    made = follower()
    made.append(previous=entry(1), new=entries(2, 5))
    return made.last_index == 10


@scenario("trim-heartbeat")
def an_append_without_entries_truncates_nothing() -> bool:
    made = follower()
    made.append(previous=entry(5), new=[])
    return made.last_index == 10


@scenario("cap")
def an_unverified_tail_is_not_committed() -> bool:
    made = follower()
    # The leader of term 2 shares this log only up to 5, and has committed its own entries up to 10.
    made.append(previous=entry(5), new=[], leader=2, term=2, commit=10)
    return made.core.library.commit_index <= 5


@scenario("chunkcommit")
def a_snapshot_piece_commits_nothing() -> bool:
    made = follower()
    made.piece(b"some", leader=2, term=2, commit=10)
    return made.core.library.commit_index == 1


@scenario("prevote")
def a_node_that_nobody_answers_does_not_raise_the_term() -> bool:
    made = follower()
    pass_time(made, 5)
    return made.core.library.term == 1


@scenario("stepdown")
def a_stale_leader_is_told_the_newer_term() -> bool:
    made = follower()
    made.core.library.set_term(5, None)
    made.append(previous=entry(10), new=[], term=3)
    return [answer["term"] for answer in made.take("next_node_idx")] == [5]


@scenario("stepdown-adopt")
def a_leader_that_is_told_a_newer_term_follows() -> bool:
    made = follower()
    made.lead(term=4)
    made.acknowledge(2, 1, term=9, success=False)
    return made.core.library.term == 9 and not made.core.library.is_leader


@scenario("votes")
def a_repeated_vote_counts_once() -> bool:
    made = bench(voters=5)
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
    """Forward a command to leader 1; return its request id, and the list that gets its outcome."""
    outcome: list[Failure | None] = []
    made.core.propose(b"x", lambda _response, failure: outcome.append(failure))
    (message,) = made.take("apply_command")
    request_id = message["request_id"]
    assert isinstance(request_id, int)
    return request_id, outcome


@scenario("lost")
def a_forwarded_command_is_answered_when_the_connection_drops() -> bool:
    made = follower()
    _, outcome = forwarded(made)
    made.core.disconnected(1)
    return outcome == [Failure.LEADER_CHANGED]


@scenario("orphans")
def a_command_that_a_snapshot_skipped_is_answered() -> bool:
    made = follower()
    request_id, outcome = forwarded(made)
    answer = {"type": "apply_command_response", "request_id": request_id}
    made.core.receive(1, {**answer, "log_idx": 15, "log_term": 1})
    data = snapshot_bytes(20)
    made.piece(data, is_last=True)
    return outcome == [Failure.UNKNOWN_OUTCOME]


@scenario("snapback")
def an_older_snapshot_does_not_take_the_node_back() -> bool:
    made = follower()
    made.append(previous=entry(10), new=[], commit=10)
    made.core.tick()
    made.piece(snapshot_bytes(5), is_last=True)
    return made.core.library.applied_index == 10


@scenario("suffix")
def a_suffix_behind_the_snapshot_is_kept() -> bool:
    made = follower()
    made.piece(snapshot_bytes(5), is_last=True)
    assert made.core.library.applied_index == 5
    return made.last_index == 10


@scenario("suffixcap")
def an_installation_does_not_commit_the_suffix() -> bool:
    made = follower()
    made.piece(snapshot_bytes(5), is_last=True, commit=10)
    return made.core.library.commit_index == 5


@scenario("chunks")
def a_gap_between_pieces_ends_the_transfer() -> bool:
    made = follower()
    data = snapshot_bytes(20)
    made.piece(data[:30])
    made.take("next_node_idx")
    made.piece(data[40:60], offset=40)
    return made.take("next_node_idx") == []


def made_answer(next_index: int) -> Message:
    """Return the response to a snapshot piece after ``next_index - 1`` bytes were received."""
    return {
        "type": "next_node_idx",
        "term": 1,
        "next_node_idx": next_index,
        "reset": False,
        "success": False,
        "learner": False,
    }


@scenario("crc")
def a_damaged_snapshot_is_not_acknowledged() -> bool:
    made = follower()
    data = bytearray(snapshot_bytes(20))
    data[60] ^= 1
    made.piece(bytes(data), is_last=True)
    return not any(answer["success"] for answer in made.take("next_node_idx"))


def leader_with_snapshot() -> Bench:
    """Return a leader of term 4 with a snapshot at 40; node 2 needs the snapshot, node 1 does not."""
    made = follower(last=40)
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
    """Return (is first, offset) of each piece sent to node 2."""
    found = [
        message["serialized"]
        for node_id, message in made.sent
        if node_id == 2 and message.get("serialized") is not None
    ]
    made.sent.clear()
    return [(piece[1], piece[4]) for piece in found]  # type: ignore[index]  # a chunk


@scenario("cancel")
def a_transfer_starts_over_on_a_new_connection() -> bool:
    made = leader_with_snapshot()
    made.core.tick()
    assert pieces(made)[0] == (True, 0)
    made.core.disconnected(2)
    made.core.connected(2)
    made.core.library.send_soon()
    made.core.tick()
    return pieces(made)[:1] == [(True, 0)]


@scenario("cancel-term")
def a_transfer_starts_over_in_a_new_term() -> bool:
    made = leader_with_snapshot()
    made.core.tick()
    assert pieces(made)[0] == (True, 0)
    made.acknowledge(2, 1, term=5, success=False)
    made.core.tick()
    made.lead(term=6)
    made.acknowledge(2, 1, term=6, success=False, reset=True)
    made.core.library.send_soon()
    made.core.tick()
    return pieces(made)[:1] == [(True, 0)]


@scenario("busy")
def a_round_sends_no_more_than_the_window() -> bool:
    made = leader_with_snapshot()
    made.core.tick()
    return len(pieces(made)) == 2


@scenario("tail")
def no_compaction_while_a_snapshot_is_sent() -> bool:
    made = leader_with_snapshot()
    made.core.tick()
    made.acknowledge(1, 42, term=4)
    made.core.tick()
    assert made.core.library.applied_index == 41
    made.core.force_compaction()
    made.core.tick()
    return not made.jobs


@scenario("serrace")
def a_late_local_snapshot_does_not_replace_a_newer_one() -> bool:
    made = follower()
    made.append(previous=entry(10), new=[], commit=8)
    made.core.tick()
    made.core.force_compaction()
    made.core.tick()
    made.piece(snapshot_bytes(20), is_last=True)
    made.finish_jobs()
    assert made.snapshots.meta is not None
    return made.snapshots.meta.index == 20


@scenario("reqid")
def an_answer_to_a_former_lifes_request_is_ignored() -> bool:
    made = bench()
    made.append(previous=entry(1), new=[])
    _, outcome = forwarded(made)
    answer: Message = {"type": "apply_command_response", "request_id": 1}
    made.core.receive(1, {**answer, "log_idx": 2, "log_term": 1})
    made.append(previous=entry(1), new=[entry(2)], commit=2)
    made.core.tick()
    return outcome == []


@scenario("hint")
def a_mismatch_is_answered_with_where_to_go_on() -> bool:
    made = follower()
    made.append(previous=entry(10), new=[], commit=5)
    made.core.tick()
    made.sent.clear()
    made.append(previous=entry(9, term=3), new=[], leader=2, term=3)
    return made.take("next_node_idx")[0]["next_node_idx"] == 6


@scenario("nextback")
def a_late_acknowledgement_keeps_the_pipeline() -> bool:
    made = follower()
    made.lead(term=4)
    assert made.core.library.next_index(2) == 12
    made.acknowledge(2, 6, term=4)
    return made.core.library.next_index(2) == 12


@scenario("nextback-reset")
def a_late_refusal_keeps_what_is_known_to_match() -> bool:
    made = follower()
    made.lead(term=4)
    made.acknowledge(2, 9, term=4)
    made.acknowledge(2, 3, term=4, success=False, reset=True)
    return made.core.library.next_index(2) == 9


@scenario("chunkack")
def a_piece_is_answered() -> bool:
    made = follower()
    made.piece(snapshot_bytes(20)[:30])
    return made.take("next_node_idx") == [made_answer(31)]


@scenario("learner")
def a_voter_without_its_directory_gives_no_vote() -> bool:
    made = bench(is_learner=True)
    question = {"type": "request_vote", "term": 7, "last_log_index": 9, "last_log_term": 6}
    made.core.receive(1, question)
    return made.take("response_vote") == []
