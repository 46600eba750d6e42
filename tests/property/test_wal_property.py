"""The Raft log against a list, with power cuts at any operation: what was synced is there, in order, whole."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raft_meta.consensus.messages import Entry
from raft_meta.consensus.wal import Wal
from tests.support.memory_files import MemoryFiles, SimulatedCrashError

State = tuple[list[Entry], int, int | None]


class WalMachine(RuleBasedStateMachine):
    """``synced`` is the state at the last sync that returned; a crash in the middle may show what it was to become."""

    @initialize()
    def begin(self) -> None:
        self.files = MemoryFiles()
        self.files.make_directory("/raft")
        self.entries: list[Entry] = []
        self.term = 0
        self.vote: int | None = None
        self.wal = self.open()
        self.wal.sync()
        self.synced = self.state()

    def open(self) -> Wal:
        return Wal(self.files, "/raft/wal", room_step_bytes=4096, reserve_bytes=512)

    def state(self) -> State:
        return list(self.entries), self.term, self.vote

    @rule(size=st.integers(1, 700), term=st.integers(0, 2))
    def append(self, size: int, term: int) -> None:
        index = self.entries[-1][1] + 1 if self.entries else 1
        entry = (bytes(size), index, self.term + term)
        self.entries.append(entry)
        self.wal.append(entry)

    @rule(back=st.integers(0, 5))
    def truncate(self, back: int) -> None:
        if self.entries:
            index = self.entries[-1][1] - back
            self.entries = [entry for entry in self.entries if entry[1] < index]
            self.wal.truncate_from(index)

    @rule(step=st.integers(0, 2), vote=st.none() | st.integers(0, 4))
    def set_hard_state(self, step: int, vote: int | None) -> None:
        self.term, self.vote = self.term + step, vote
        self.wal.set_hard_state(self.term, vote)

    @rule()
    def sync(self) -> None:
        self.wal.sync()
        self.synced = self.state()

    @rule(keep=st.integers(0, 5))
    def drop_head(self, keep: int) -> None:
        if self.entries:
            index = max(self.entries[0][1], self.entries[-1][1] - keep)
            self.entries = [entry for entry in self.entries if entry[1] >= index]
            self.wal.drop_before(index)
            self.synced = self.state()

    @rule(
        number=st.none() | st.integers(0, 6),
        is_dropping=st.booleans(),
        keep=st.sampled_from(["none", "some", "all"]),
        seed=st.integers(0, 1000),
    )
    def crash(self, number: int | None, is_dropping: bool, keep: str, seed: int) -> None:
        before, after = self.synced, self.state()
        if number is not None:
            self.files.crash_before(number)
            try:
                if is_dropping and self.entries:
                    self.wal.drop_before(self.entries[0][1])
                else:
                    self.wal.sync()
                before = after
            except SimulatedCrashError:
                pass
        self.files.crash(random.Random(seed), keep)  # type: ignore[arg-type]  # one of its literals
        self.wal = self.open()
        found = (list(self.wal.entries), self.wal.term, self.wal.voted_for)
        assert found in (before, after)
        self.entries, self.term, self.vote = found
        self.synced = self.state()

    @invariant()
    def memory_is_the_model(self) -> None:
        if hasattr(self, "wal"):
            assert self.wal.entries == self.entries
            assert (self.wal.term, self.wal.voted_for) == (self.term, self.vote)


TestWal = WalMachine.TestCase
TestWal.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
