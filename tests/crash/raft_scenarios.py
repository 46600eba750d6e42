"""What one node's Raft directory has promised: votes, terms, acknowledged entries, snapshots; see ``search``.

A real ``RaftCore`` runs on the bench, fed with a leader's and candidates' messages. What it has promised is read off
the messages that it sends: an acknowledgement covers the log up to its index, a vote its term and candidate.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

from raft_meta.consensus.bootstrap import (
    BootstrapState,
    VoterRecord,
    check_directory,
    load_record,
    store_record,
)
from raft_meta.consensus.library import use_clock
from raft_meta.consensus.messages import Entry, Message
from tests.crash.search import Promise, Scenario, Verdict
from tests.support.clusters.raft_bench import DIRECTORY, Bench, entries, entry, snapshot_bytes
from tests.support.disk.memory_files import MemoryFiles

Announce = Callable[[Promise], None]


class _StillClock:
    """The library takes its time from here; the bench's stands still."""

    now = 100.0


def boot(files: MemoryFiles, *, voters: int = 3) -> Bench:
    """A node as it starts from its directory."""
    return Bench(files=files, voters=voters)


@dataclass(frozen=True, slots=True)
class RaftPromise:
    """What this node may not forget.

    Attributes:
        acknowledged: the entries from index 1 up to the last that it said to have.
        offered: every entry that it was ever sent: nothing else may be in its log.
        term: the greatest that it voted or acknowledged in.
        vote: whom it voted for in that term, if it did.
    """

    acknowledged: tuple[Entry, ...] = ()
    offered: frozenset[Entry] = frozenset({entry(1)})
    term: int = 0
    vote: int | None = None
    voters: int = 3

    @property
    def key(self) -> object:
        return self

    def recover(self, files: MemoryFiles) -> Verdict:
        with use_clock(lambda: _StillClock.now):
            bench = boot(files, voters=self.voters)
        meta = bench.snapshots.meta
        wal = bench.wal
        return Verdict(
            (tuple(wal.entries), wal.term, wal.voted_for, meta, tuple(bench.machine.applied))
        )

    def judge(self, verdict: Verdict) -> None:
        log, term, vote, meta, applied = verdict.state
        covered = 0 if meta is None else meta.index
        for one in self.acknowledged:
            index = one[1]
            is_there = index <= covered or (log[0][1] <= index <= log[-1][1])
            assert is_there, f"entry {index} was acknowledged and is gone"
            if log[0][1] <= index <= log[-1][1]:
                assert log[index - log[0][1]] == one, f"entry {index} is another one"
        invented = [one for one in log if one not in self.offered]
        assert not invented, f"nobody sent {invented}"
        for before, after in itertools.pairwise(log):
            assert after[1] == before[1] + 1, "a gap in the log"
        assert log, "no log at all"
        assert meta is None or log[0][1] <= covered, "the log does not reach the snapshot"
        state = tuple(command[1:] for command, _, _ in entries(2, covered)) if covered else ()
        assert applied == state, f"the state at {covered} is {applied}"
        assert term >= self.term, f"term {self.term} is forgotten: {term}"
        if self.vote is not None and term == self.term:
            assert vote == self.vote, f"the vote for {self.vote} is forgotten: {vote}"

    def judge_killed(self, verdict: Verdict) -> None:
        self.judge(verdict)

    def live_on(self, files: MemoryFiles) -> None:
        with use_clock(lambda: _StillClock.now):
            bench = boot(files, voters=self.voters)
            last = bench.wal.entries[-1]
            added = (b"\0alive", last[1] + 1, bench.wal.term + 1)
            bench.append(previous=last, new=[added], term=added[2])
            assert any(answer["success"] for answer in bench.take("next_node_idx"))
            before = list(bench.wal.entries)
            files.crash()
            again = boot(files, voters=self.voters)
        assert again.wal.entries == before, "what was acknowledged after recovery is gone"
        assert again.wal.term == added[2]


class Follower:
    """The node, and what it promises as it goes."""

    def __init__(self, files: MemoryFiles, announce: Announce) -> None:
        self._announce = announce
        self.promise = RaftPromise()
        announce(self.promise)
        self.files = files
        self.start()

    def start(self) -> None:
        """Start, or start again."""
        self.bench = boot(self.files)
        self.bench.on_send = self._on_send

    def _on_send(self, message: Message) -> None:
        bench = self.bench
        changes: dict[str, object] = {}
        if message["type"] == "next_node_idx" and message["success"]:
            end = message["next_node_idx"] - 1
            log = {one[1]: one for one in (*self.promise.acknowledged, *bench.wal.entries)}
            if bench.snapshots.meta is not None:
                log = {one[1]: one for one in entries(1, bench.snapshots.meta.index)} | log
            end = max(end, len(self.promise.acknowledged))
            changes["acknowledged"] = tuple(log[index] for index in range(1, end + 1))
            changes["term"] = bench.wal.term
        if message["type"] in ("response_vote", "request_vote"):
            changes |= {"term": bench.wal.term, "vote": bench.wal.voted_for}
        if changes.get("term", 0) > self.promise.term and "vote" not in changes:
            changes["vote"] = None
        self._say(**changes)

    def _say(self, **changes: object) -> None:
        promise = replace(self.promise, **changes)
        if promise != self.promise:
            self.promise = promise
            self._announce(promise)

    def follow(self, previous: Entry, new: list[Entry], *, term: int, commit: int = 1) -> None:
        """A leader's append, and the tick after it."""
        kept = tuple(
            one
            for one in self.promise.acknowledged
            if one[1] <= previous[1] or not new or one in new or one[1] < new[0][1]
        )
        # From where a leader overwrites it, nothing was committed, and nothing need stay.
        length = next(
            (number for number, one in enumerate(kept) if one[1] != number + 1), len(kept)
        )
        self._say(acknowledged=kept[:length], offered=self.promise.offered | set(new))
        self.bench.append(previous=previous, new=new, term=term, commit=commit)
        self.bench.core.tick()

    def vote(self, candidate: int, term: int) -> None:
        """A candidate asks."""
        last = self.bench.wal.entries[-1]
        question = {
            "type": "request_vote",
            "term": term,
            "last_log_index": last[1] + 5,
            "last_log_term": last[2],
        }
        self.bench.core.receive(candidate, question)
        self.bench.core.tick()

    def compact(self) -> None:
        """Write a snapshot, and drop what it holds."""
        self.bench.core.force_compaction()
        self.bench.core.tick()
        self.bench.finish_jobs()
        self.bench.core.tick()

    def install(self, index: int, *, term: int, serial: int = 1) -> None:
        """A leader's snapshot, in pieces."""
        content = snapshot_bytes(index)
        self._say(offered=self.promise.offered | {entry(index), entry(index - 1)})
        pieces = range(0, len(content), 64)
        for offset in pieces:
            self.bench.piece(
                content[offset : offset + 64],
                offset=offset,
                is_last=offset == pieces[-1],
                serial=serial,
                term=term,
                commit=index,
            )
            self.bench.core.tick()


def raft_follow(node: Follower) -> None:
    """Entries, votes, new terms, and a leader that overwrites what another one wrote."""
    node.follow(entry(1), entries(2, 4), term=1)
    node.follow(entry(4), entries(5, 9), term=1, commit=5)
    node.vote(2, 2)
    node.follow(entry(6), entries(7, 8, term=2), term=2, commit=6)
    node.vote(1, 4)
    node.vote(2, 4)
    node.follow(entry(8, 2), entries(9, 30, term=4), term=4, commit=9)
    node.start()
    node.follow(entry(20, 4), entries(21, 22, term=5), term=5, commit=20)


def raft_compact(node: Follower) -> None:
    """Snapshots of its own, and the log rewritten behind them."""
    node.follow(entry(1), entries(2, 40), term=1, commit=30)
    node.compact()
    node.follow(entry(40), entries(41, 45), term=1, commit=44)
    node.compact()
    node.vote(2, 3)
    node.start()
    node.follow(entry(45), entries(46, 47), term=3, commit=46)
    node.compact()


def raft_install(node: Follower) -> None:
    """A leader's snapshot over a shorter log, and over one whose end it keeps."""
    node.follow(entry(1), entries(2, 6), term=1, commit=3)
    node.install(20, term=1)
    node.follow(entry(20), entries(21, 26), term=1, commit=21)
    node.install(24, term=1, serial=2)
    node.follow(entry(26), entries(27, 28), term=1, commit=27)
    node.start()
    node.follow(entry(28), entries(29, 30), term=1, commit=29)


@dataclass(frozen=True, slots=True)
class FoundingPromise:
    """A voter's record, and that no log is there without it."""

    states: tuple[BootstrapState, ...]

    @property
    def key(self) -> object:
        return self

    def recover(self, files: MemoryFiles) -> Verdict:
        files.make_directory(DIRECTORY)
        state = check_directory(files, DIRECTORY, node_id=0, voters=(0, 1, 2))
        return Verdict((state, load_record(files, DIRECTORY)))

    def judge(self, verdict: Verdict) -> None:
        assert verdict.state[0] in self.states, verdict

    def judge_killed(self, verdict: Verdict) -> None:
        self.judge(verdict)

    def live_on(self, files: MemoryFiles) -> None:
        self.recover(files)
        _record(files, BootstrapState.MEMBER)
        files.crash()
        assert self.recover(files).state[0] is BootstrapState.MEMBER


def _record(files: MemoryFiles, state: BootstrapState) -> None:
    store_record(files, DIRECTORY, VoterRecord(node_id=0, voters=(0, 1, 2), state=state))


def _run_founding(files: MemoryFiles, announce: Announce) -> None:
    stages = (BootstrapState.EMPTY, BootstrapState.FOUNDING, BootstrapState.MEMBER)
    announce(FoundingPromise(stages[:1]))
    files.make_directory(DIRECTORY)
    for before, after in itertools.pairwise(stages):
        announce(FoundingPromise((before, after)))
        _record(files, after)
        announce(FoundingPromise((after,)))
    with use_clock(lambda: _StillClock.now):
        boot(files).append(previous=entry(1), new=entries(2, 4))


def _scenario(steps: Callable[[Follower], None]) -> Scenario:
    def run(files: MemoryFiles, announce: Announce) -> None:
        with use_clock(lambda: _StillClock.now):
            steps(Follower(files, announce))

    return Scenario(steps.__name__.replace("_", "-"), run)


RAFT_SCENARIOS = (
    _scenario(raft_follow),
    _scenario(raft_compact),
    _scenario(raft_install),
    Scenario("raft-founding", _run_founding),
)
