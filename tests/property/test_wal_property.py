"""The Raft log against a list, with power cuts at any operation: what was synced is there, in order, whole.

The disk fills up and empties, too: then the file may still hold what was dropped, and nothing else.
"""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from milena.model.errors import DiskFullError
from raft_meta.consensus.messages import Entry
from raft_meta.consensus.wal import Wal
from tests.support.disk.memory_files import MemoryFiles, SimulatedCrashError

State = tuple[list[Entry], int, int | None, list[Entry]]


class WalMachine(RuleBasedStateMachine):
    """``synced`` is the state at the last sync that returned; a crash in the middle may show what it was to become.

    ``left``: entries below the first that a full disk may have kept in the file. ``next_index``: of the next entry.
    """

    @initialize()
    def begin(self) -> None:
        self.files = MemoryFiles()
        self.files.make_directory("/raft")
        self.entries: list[Entry] = []
        self.left: list[Entry] = []
        self.next_index = 1
        self.term = 0
        self.vote: int | None = None
        self.wal = self.open()
        self.wal.sync()
        self.synced = self.state()

    def open(self) -> Wal:
        return Wal(self.files, "/raft/wal", room_step_bytes=4096, reserve_bytes=512)

    def state(self) -> State:
        return list(self.entries), self.term, self.vote, list(self.left)

    def note_synced(self) -> None:
        """A full disk leaves for the next sync what a rewrite would have made durable."""
        if not self.wal.is_dirty:
            self.synced = self.state()

    def stop(self) -> None:
        """Not even the reserve was left: the process stops, and comes back where there is room."""
        self.files.kill()
        self.files.capacity = None
        self.start(self.synced)

    def start(self, *allowed: State) -> None:
        self.wal = self.open()
        found = list(self.wal.entries)
        hard_state = (self.wal.term, self.wal.voted_for)
        assert any(
            hard_state == state[1:3] and is_from(found, state[0], state[3]) for state in allowed
        )
        self.entries, self.left = found, []
        self.term, self.vote = hard_state
        self.next_index = found[-1][1] + 1 if found else 1
        self.synced = self.state()

    @rule(count=st.integers(1, 5), size=st.integers(1, 700), term=st.integers(0, 2))
    def append(self, count: int, size: int, term: int) -> None:
        for _ in range(count if self.wal.has_room(size * count, count=count) else 0):
            entry = (bytes(size), self.next_index, self.term + term)
            self.next_index += 1
            self.entries.append(entry)
            self.wal.append(entry)

    @rule(back=st.integers(0, 5), syncs=st.booleans())
    def truncate(self, back: int, syncs: bool) -> None:
        if self.entries:
            index = max(1, self.entries[-1][1] - back)
            self.entries = [entry for entry in self.entries if entry[1] < index]
            self.left = [entry for entry in self.left if entry[1] < index]
            self.next_index = index
            self.wal.truncate_from(index)
        if syncs:
            self.sync()

    @rule(step=st.integers(0, 2), vote=st.none() | st.integers(0, 4))
    def set_hard_state(self, step: int, vote: int | None) -> None:
        self.term, self.vote = self.term + step, vote
        self.wal.set_hard_state(self.term, vote)

    @rule()
    def sync(self) -> None:
        try:
            self.wal.sync()
        except DiskFullError:
            self.stop()
        else:
            self.synced = self.state()

    @rule(keep=st.integers(0, 3), fills=st.booleans())
    def drop_head(self, keep: int, fills: bool) -> None:
        if fills:
            self.fill_disk(0)
        if self.entries:
            index = max(self.entries[0][1], self.entries[-1][1] - keep)
            self.left += [entry for entry in self.entries if entry[1] < index]
            self.entries = [entry for entry in self.entries if entry[1] >= index]
            is_full = self.files.capacity is not None
            self.wal.drop_before(index)
            if not is_full:
                assert not self.wal.is_dirty
                self.left = []
            self.note_synced()

    @rule(ahead=st.integers(0, 9), size=st.integers(1, 300), fills=st.booleans())
    def restart(self, ahead: int, size: int, fills: bool) -> None:
        if fills:
            self.fill_disk(0)
        first = self.next_index + ahead
        if self.wal.has_room(2 * size, count=2):
            self.entries = [(bytes(size), index, self.term) for index in (first, first + 1)]
            self.left, self.next_index = [], first + 2
            self.wal.restart_with(self.entries)
            self.sync()

    @rule(free=st.sampled_from((0, 3000, 6000)))
    def fill_disk(self, free: int) -> None:
        self.files.capacity = self.files.used_bytes() + free

    @rule()
    def empty_disk(self) -> None:
        self.files.capacity = None

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
                if not self.wal.is_dirty:
                    before = after
            except (SimulatedCrashError, DiskFullError):
                pass
        self.files.crash(random.Random(seed), keep)  # type: ignore[arg-type]  # one of its literals
        self.start(before, after)

    @invariant()
    def memory_is_the_model(self) -> None:
        if hasattr(self, "wal"):
            assert self.wal.entries == self.entries
            assert (self.wal.term, self.wal.voted_for) == (self.term, self.vote)


def is_from(found: list[Entry], entries: list[Entry], left: list[Entry]) -> bool:
    """Whether these are the entries, behind as many of those left as there may be."""
    extra = len(found) - len(entries)
    return extra >= 0 and found[extra:] == entries and found[:extra] == left[len(left) - extra :]


TestWal = WalMachine.TestCase
TestWal.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
