"""The core beyond its guards: commands, observers, learners, full disks, timers, compaction."""

from collections.abc import Iterator

import pytest

from milena.model.errors import CorruptLogError, DiskFailedError, DiskFullError
from raft_meta.consensus.core import NEWS_SECONDS
from raft_meta.consensus.library import NO_OP, Failure, use_clock
from raft_meta.consensus.quorum import Role
from tests.support.clusters.raft_bench import DIRECTORY, Bench, entries, entry, snapshot_bytes
from tests.support.disk.memory_files import MemoryFiles


class _Clock:
    now = 100.0


@pytest.fixture(autouse=True)
def _library_clock() -> Iterator[None]:
    _Clock.now = 100.0
    with use_clock(lambda: _Clock.now):
        yield


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
    made = bench(**options)
    made.append(previous=entry(1), new=entries(2, last))
    made.core.tick()
    made.sent.clear()
    return made


def leader(last: int = 10, **options: object) -> Bench:
    made = follower(last, **options)
    made.lead(term=4)
    made.sent.clear()
    return made


Outcome = list[tuple[bytes | None, Failure | None]]


def propose(made: Bench, command: bytes = b"x") -> tuple[int | None, Outcome]:
    outcome: Outcome = []
    ticket = made.core.propose(
        command, lambda response, failure: outcome.append((response, failure))
    )
    return ticket, outcome


# -- elections


def test_a_single_voter_elects_itself() -> None:
    made = bench(voters=1)
    pass_time(made, 1.2)
    assert made.core.role is Role.LEADER


def test_a_majority_of_pre_votes_and_votes_makes_a_leader() -> None:
    made = bench()
    pass_time(made, 1.2)
    question = made.take("pre_vote")[-1]
    assert question["term"] == 0
    reply = {"type": "pre_vote_reply", "term": 0, "round": question["round"], "ok": True}
    made.core.receive(1, reply)
    pass_time(made, 0.05)
    assert made.core.role is Role.CANDIDATE
    made.core.receive(1, {"type": "response_vote", "term": 1})
    assert made.core.role is Role.LEADER


def test_an_approval_of_an_earlier_round_does_not_count() -> None:
    made = bench()
    pass_time(made, 1.2)
    question = made.take("pre_vote")[-1]
    stale = {"type": "pre_vote_reply", "term": 0, "round": 0, "ok": True}
    assert question["round"] != 0
    made.core.receive(1, stale)
    pass_time(made, 0.05)
    assert made.core.role is Role.FOLLOWER


def test_a_reply_to_a_pre_vote_brings_a_newer_term() -> None:
    made = bench()
    made.core.receive(1, {"type": "pre_vote_reply", "term": 9, "round": 0, "ok": False})
    assert made.core.library.term == 9


def question_of(last_index: int, last_term: int) -> dict[str, object]:
    return {
        "type": "pre_vote",
        "term": 0,
        "last_log_index": last_index,
        "last_log_term": last_term,
        "round": 1,
    }


def test_a_pre_vote_is_refused_while_a_leader_is_heard() -> None:
    made = follower()
    made.core.receive(2, question_of(99, 9))
    assert [reply["ok"] for reply in made.take("pre_vote_reply")] == [False]
    pass_time(made, 0.6)
    made.sent.clear()
    made.core.receive(2, question_of(99, 9))
    assert [reply["ok"] for reply in made.take("pre_vote_reply")] == [True]


def test_a_pre_vote_is_refused_to_an_older_log() -> None:
    made = follower()
    pass_time(made, 0.6)
    made.sent.clear()
    made.core.receive(2, question_of(9, 1))
    assert [reply["ok"] for reply in made.take("pre_vote_reply")] == [False]


def test_a_lost_connection_to_the_leader_is_followed_by_an_early_question() -> None:
    made = follower()
    made.core.disconnected(1)
    pass_time(made, 0.2)
    assert made.take("pre_vote")
    assert made.core.status().leader_id is None


def test_a_leader_without_answers_steps_down() -> None:
    made = leader()
    pass_time(made, 1.2)
    assert made.core.role is not Role.LEADER


def test_leadership_is_handed_to_a_voter_that_has_caught_up() -> None:
    made = leader()
    assert not made.core.transfer_leadership()
    made.acknowledge(2, 12, term=4)
    assert made.core.transfer_leadership()
    made.core.tick()
    assert (2, {"type": "timeout_now", "term": 4}) in made.sent


def test_a_follower_that_is_told_to_take_over_campaigns_at_once() -> None:
    made = follower()
    made.core.receive(1, {"type": "timeout_now", "term": 1})
    assert [message["term"] for message in made.take("request_vote")] == [2, 2]


def test_a_follower_has_no_leadership_to_hand_over() -> None:
    assert not follower().core.transfer_leadership()


# -- commands


def test_a_command_is_answered_once_a_majority_holds_it() -> None:
    made = leader()
    _, outcome = propose(made)
    made.core.tick()
    assert outcome == []
    made.acknowledge(1, 13, term=4)
    made.core.tick()
    assert outcome == [(b"x", None)]


def test_commands_that_come_together_leave_together() -> None:
    made = leader()
    for number in range(20):
        propose(made, b"%d" % number)
    appends = [message for message in made.take("append_entries") if message["entries"]]
    assert len(appends) == 2
    assert len(appends[0]["entries"]) == 20  # type: ignore[arg-type]  # a list of entries


def test_an_append_leaves_before_the_leaders_own_sync() -> None:
    made = leader()
    dirty: list[bool] = []
    made.on_send = lambda _message: dirty.append(made.wal.is_dirty)
    propose(made)
    made.core.tick()
    assert dirty == [True, True]
    assert not made.wal.is_dirty


def test_a_leader_commits_nothing_before_its_own_sync() -> None:
    made = leader()
    dirty: list[bool] = []
    made.machine.on_apply = lambda: dirty.append(made.wal.is_dirty)
    propose(made)
    made.core.advance()
    assert made.wal.is_dirty
    for node_id in (1, 2):
        made.acknowledge(node_id, 13, term=4)
    made.core.advance()
    assert made.core.library.applied_index == 12
    assert dirty
    assert not any(dirty)


def test_a_follower_acknowledges_before_it_applies() -> None:
    made = follower()
    at: list[int] = []
    made.on_send = lambda _message: at.append(made.core.library.applied_index)
    applied = made.core.library.applied_index
    made.append(previous=entry(10), new=entries(11, 12), commit=10)
    made.core.tick()
    assert at == [applied]
    assert made.core.library.applied_index == 10


def commit_one(made: Bench) -> None:
    propose(made)
    made.core.tick()
    made.sent.clear()
    made.acknowledge(1, made.last_index + 1, term=4)
    made.core.tick()
    assert made.core.library.commit_index == made.last_index


def test_the_next_entries_tell_that_the_commit_index_moved() -> None:
    made = leader()
    commit_one(made)
    assert not made.sent
    propose(made)
    appends = made.take("append_entries")
    assert len(appends) == 2
    assert {message["commit_index"] for message in appends} == {made.last_index - 1}


def test_without_entries_an_empty_append_tells_it_a_moment_later() -> None:
    made = leader()
    commit_one(made)
    due = made.core.next_due()
    assert due == pytest.approx(made.now + NEWS_SECONDS)
    made.now = _Clock.now = due + 0.0001
    appends = made.take("append_entries")
    assert [message["entries"] for message in appends] == [[], []]
    assert {message["commit_index"] for message in appends} == {made.last_index}
    assert made.core.next_due() > due + NEWS_SECONDS


def test_who_forwarded_a_command_is_told_at_once_that_it_is_committed() -> None:
    made = leader()
    made.core.receive(1, {"type": "apply_command", "command": b"\0x", "request_id": 7})
    made.core.tick()
    made.sent.clear()
    made.acknowledge(2, made.last_index + 1, term=4)
    appends = made.take("append_entries")
    assert {message["commit_index"] for message in appends} == {made.last_index}
    commit_one(made)
    assert not made.sent


def test_an_observer_is_due_a_heartbeat_after_its_last_tick_whenever_it_is_asked() -> None:
    made = bench(node_id=7)
    made.core.tick()
    due = made.core.next_due()
    made.now = _Clock.now = due
    assert made.core.next_due() == due
    made.core.tick()
    assert made.core.next_due() > due


def test_a_command_waits_for_a_leader_and_can_be_taken_back() -> None:
    made = bench()
    ticket, outcome = propose(made)
    made.core.tick()
    assert ticket is not None
    assert made.core.withdraw(ticket)
    assert not made.core.withdraw(ticket)
    made.append(previous=entry(1), new=[])
    assert made.take("apply_command") == []
    assert outcome == []


def test_a_command_that_has_left_cannot_be_taken_back() -> None:
    made = follower()
    ticket, _ = propose(made)
    assert len(made.take("apply_command")) == 1
    assert ticket is not None
    assert not made.core.withdraw(ticket)


def test_a_full_queue_refuses_definitely() -> None:
    made = bench()
    outcomes = [propose(made, bytes(1 << 20)) for _ in range(65)]
    ticket, outcome = outcomes[-1]
    assert ticket is None
    assert outcome == [(None, Failure.QUEUE_FULL)]


def test_a_forwarded_command_is_answered_with_its_place_in_the_log() -> None:
    made = leader()
    made.core.receive(1, {"type": "apply_command", "command": b"\0c", "request_id": 7})
    answer = {"type": "apply_command_response", "request_id": 7, "log_idx": 12, "log_term": 4}
    assert made.take("apply_command_response") == [answer]


def test_a_node_that_does_not_lead_refuses_what_is_forwarded_to_it() -> None:
    made = follower()
    made.core.receive(2, {"type": "apply_command", "command": b"\0c", "request_id": 7})
    (answer,) = made.take("apply_command_response")
    assert answer["error"] == Failure.NOT_LEADER
    assert Failure.NOT_LEADER.is_definite


# -- observers


def test_an_observer_follows_and_never_campaigns() -> None:
    made = bench(node_id=7)
    made.append(previous=entry(1), new=entries(2, 5), commit=5)
    pass_time(made, 3)
    assert made.core.role is Role.OBSERVER
    assert made.machine.applied == [b"2", b"3", b"4", b"5"]
    assert {message["type"] for _, message in made.sent} == {"next_node_idx"}


def test_an_observer_ignores_elections() -> None:
    made = bench(node_id=7)
    made.core.receive(1, {**question_of(9, 9), "type": "request_vote", "term": 9})
    made.core.receive(1, question_of(9, 9))
    made.core.tick()
    assert made.sent == []
    assert made.core.library.term == 0


def test_an_observer_is_sent_the_log_but_does_not_count() -> None:
    made = leader()
    made.core.connected(9)
    made.core.library.send_soon()
    made.core.tick()
    assert 9 in {node_id for node_id, _ in made.sent}
    made.acknowledge(9, 12, term=4)
    made.core.tick()
    assert made.core.status().commit_index == 1


def test_an_observer_may_not_speak_as_a_voter() -> None:
    made = follower()
    made.core.connected(9)
    made.append(previous=entry(10), new=entries(11, 12, term=8), leader=9, term=8)
    made.core.receive(9, {**question_of(99, 9), "type": "request_vote", "term": 9})
    assert made.core.library.term == 1
    assert made.last_index == 10


def test_a_node_without_a_connection_is_not_listened_to() -> None:
    made = leader()
    made.core.receive(9, {"type": "apply_command", "command": b"\0c", "request_id": 7})
    assert made.take("apply_command_response") == []


# -- learners


def test_a_learner_becomes_a_member_once_it_applied_an_entry_of_its_own() -> None:
    made = bench(is_learner=True)
    assert made.core.role is Role.LEARNER
    made.append(previous=entry(1), new=entries(2, 5), commit=5)
    made.core.tick()
    assert all(message["learner"] for message in made.take("next_node_idx"))
    pass_time(made, 1.2)
    # The leader's heartbeats stop here, so the proof is still on its way.
    made.append(previous=entry(5), new=[], commit=5)
    pass_time(made, 0.05)
    proof = [m["command"] for _, m in made.sent if m["type"] == "apply_command"][-1]
    assert isinstance(proof, bytes)
    assert proof.startswith(NO_OP + b"learner 0 5")
    assert not made.became_member
    made.append(previous=entry(5), new=[(proof, 6, 1)], commit=6)
    made.core.tick()
    assert made.became_member
    assert made.core.role is Role.FOLLOWER
    assert made.wal.voted_for == 0


def test_a_learner_does_not_take_anothers_proof_for_its_own() -> None:
    made = bench(is_learner=True)
    made.append(previous=entry(1), new=[(NO_OP + b"learner 0 4 1", 2, 1)], commit=2)
    pass_time(made, 1)
    assert not made.became_member


def test_a_learner_asks_for_no_votes() -> None:
    made = bench(is_learner=True)
    pass_time(made, 3)
    assert made.take("pre_vote") == []


def test_a_learners_answers_do_not_keep_a_leader_in_office() -> None:
    made = leader()
    answer = {"term": 4, "next_node_idx": 12, "reset": False, "success": True, "learner": True}
    for _ in range(30):
        made.core.receive(2, {"type": "next_node_idx", **answer})
        pass_time(made, 0.05)
    assert made.core.role is not Role.LEADER
    assert made.core.status().commit_index == 1


# -- full and failing disks


def fill(made: Bench) -> None:
    made.files.capacity = made.files.used_bytes()


def test_a_leader_with_a_full_disk_refuses_commands_and_goes_on_leading() -> None:
    made = leader()
    fill(made)
    outcomes = [propose(made, bytes(1000))[1] for _ in range(6)]
    made.core.tick()
    assert outcomes[-1] == [(None, Failure.REQUEST_DENIED)]
    assert made.core.role is Role.LEADER
    made.core.receive(1, {"type": "apply_command", "command": bytes(2000), "request_id": 7})
    (answer,) = made.take("apply_command_response")
    assert answer["error"] == Failure.REQUEST_DENIED


def test_a_follower_with_a_full_disk_acknowledges_only_what_it_took() -> None:
    made = follower()
    fill(made)
    big = [(b"\0" + bytes(3000), index, 1) for index in (11, 12, 13)]
    made.append(previous=entry(10), new=big, commit=13)
    answer = made.take("next_node_idx")[-1]
    assert (answer["success"], answer["next_node_idx"]) == (True, 11)
    assert made.core.status().commit_index == 10
    made.files.capacity = None
    made.append(previous=entry(10), new=big, commit=13)
    assert made.take("next_node_idx")[-1]["next_node_idx"] == 14
    assert made.core.status().applied_index == 13


def test_a_failed_sync_comes_out_of_the_tick_and_nothing_leaves() -> None:
    made = bench()
    made.append(previous=entry(1), new=entries(2, 5))
    made.files.fail_next_sync("wal")
    with pytest.raises(DiskFailedError):
        made.core.tick()
    assert made.sent == []


def test_a_snapshot_that_does_not_fit_is_given_up() -> None:
    made = follower()
    data = snapshot_bytes(20)
    fill(made)
    made.piece(data, is_last=True)
    assert not any(answer["success"] for answer in made.take("next_node_idx"))
    made.files.capacity = None
    made.piece(data, is_last=True)
    assert made.core.status().applied_index == 20


# -- compaction and snapshots


def committed(last: int = 40) -> Bench:
    made = follower(last)
    made.append(previous=entry(last), new=[], commit=last)
    made.core.tick()
    return made


def test_compaction_shortens_the_log_and_a_restart_begins_there() -> None:
    made = committed()
    made.core.force_compaction()
    made.core.tick()
    made.finish_jobs()
    assert [index for _, index, _ in made.wal.entries] == [39, 40]
    made.files.crash()
    made.boot()
    assert made.core.status().applied_index == 40
    assert made.machine.applied == [b"%d" % index for index in range(2, 41)]


def test_nothing_is_compacted_twice_for_the_same_index() -> None:
    made = committed()
    for _ in range(2):
        made.core.force_compaction()
        made.core.tick()
        made.finish_jobs()
    assert made.files.operations["rename"] == 2 + 0
    made.core.force_compaction()
    made.core.tick()
    assert made.jobs == []


def test_a_snapshot_on_a_full_disk_is_tried_again_later() -> None:
    made = committed()
    made.core.force_compaction()
    made.core.tick()
    job, done = made.jobs.pop()
    done(DiskFullError("full"))
    assert made.snapshots.meta is None
    made.core.force_compaction()
    made.core.tick()
    made.finish_jobs()
    assert made.snapshots.meta is not None
    assert job is not None


def test_a_disk_full_since_the_compaction_takes_a_snapshot_and_the_node_starts_again() -> None:
    made = committed()
    made.core.force_compaction()
    made.core.tick()
    data = snapshot_bytes(60)
    # Room for both snapshots and not for the log beside itself.
    made.files.capacity = made.files.used_bytes() + 3 * len(data)
    made.finish_jobs()
    assert made.wal.entries[0] == entry(39)
    made.piece(data, is_last=True)
    made.core.tick()
    assert made.take("next_node_idx")[-1]["next_node_idx"] == 61
    made.append(previous=entry(60), new=[entry(61)], commit=61)
    assert made.take("next_node_idx")[-1]["next_node_idx"] == 62
    made.files.crash()
    made.boot()
    assert made.core.status().applied_index == 60
    assert made.wal.entries[-1] == entry(61)


def test_a_snapshot_that_fails_otherwise_stops_the_node() -> None:
    made = committed()
    made.core.force_compaction()
    made.core.tick()
    _, done = made.jobs.pop()
    with pytest.raises(DiskFailedError):
        done(DiskFailedError("broken"))


def test_a_snapshot_in_pieces_is_installed_and_acknowledged() -> None:
    made = follower()
    data = snapshot_bytes(30)
    for offset in range(0, len(data), 50):
        made.piece(data[offset : offset + 50], offset=offset, is_last=offset + 50 >= len(data))
    answers = made.take("next_node_idx")
    assert answers[-1]["success"]
    assert answers[-1]["next_node_idx"] == 31
    assert made.machine.applied[-1] == b"30"
    made.files.crash()
    made.boot()
    assert made.core.status().applied_index == 30


def test_a_piece_of_an_unknown_transfer_is_ignored() -> None:
    made = follower()
    made.piece(b"tail", offset=50, is_last=True)
    assert made.take("next_node_idx") == []


def test_a_leader_without_a_piece_to_send_is_answered_with_progress() -> None:
    made = follower()
    made.piece(None)
    assert [answer["next_node_idx"] for answer in made.take("next_node_idx")] == [1]


def sent_pieces(made: Bench) -> list[tuple[bool, int]]:
    found = [m["serialized"] for node, m in made.sent if node == 2 and m.get("serialized")]
    made.sent.clear()
    return [(piece[1], piece[4]) for piece in found]  # type: ignore[index]  # a chunk


def test_pieces_follow_the_answers_and_entries_follow_the_pieces() -> None:
    made = committed()
    made.core.force_compaction()
    made.core.tick()
    made.finish_jobs()
    made.lead(term=4)
    made.acknowledge(2, 1, term=4, success=False, reset=True)
    made.sent.clear()
    size = made.snapshots.size_bytes
    offsets: list[int] = []
    while not offsets or offsets[-1] + 64 < size:
        made.core.tick()
        offsets += [offset for _, offset in sent_pieces(made)]
        made.acknowledge(2, offsets[-1] + 64 + 1, term=4, success=False)
    assert offsets == list(range(0, size, 64))
    assert made.core.library.next_index(2) >= 41
    made.acknowledge(2, 41, term=4)
    made.core.tick()
    assert made.core.library.match_index(2) == 40


def test_a_transfer_without_progress_is_begun_anew() -> None:
    made = committed()
    made.core.force_compaction()
    made.core.tick()
    made.finish_jobs()
    made.lead(term=4)
    made.acknowledge(2, 1, term=4, success=False, reset=True)
    made.sent.clear()
    for _ in range(60):
        made.acknowledge(1, 42, term=4)
        pass_time(made, 0.05)
    starts = [offset for is_first, offset in sent_pieces(made) if is_first]
    assert len(starts) >= 2


def test_a_congested_node_gets_heartbeats_only() -> None:
    made = leader()
    made.is_blocked = True
    propose(made)
    appends = made.take("append_entries")
    assert appends
    assert all(not message["entries"] for message in appends)


def test_a_shortened_log_without_its_snapshot_is_refused() -> None:
    made = committed()
    made.core.force_compaction()
    made.core.tick()
    made.finish_jobs()
    made.files.remove(f"{DIRECTORY}/snapshot")
    with pytest.raises(CorruptLogError, match="files are missing"):
        made.boot()


# -- timers


def test_a_follower_is_due_at_its_election_deadline() -> None:
    made = follower()
    assert 0.5 <= made.core.next_due() - made.now <= 1.0


def test_a_leader_is_due_at_its_heartbeat() -> None:
    made = leader()
    assert made.core.next_due() - made.now <= 0.1


def test_an_observer_is_due_now_and_then() -> None:
    made = bench(node_id=7)
    assert made.core.next_due() - made.now == pytest.approx(0.1)


def test_closing_syncs_the_log() -> None:
    files = MemoryFiles()
    made = bench(files=files)
    made.core.library.set_term(8, 2)
    made.core.close()
    files.crash()
    made.boot()
    assert (made.wal.term, made.wal.voted_for) == (8, 2)
