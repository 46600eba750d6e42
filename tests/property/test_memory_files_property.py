"""The twin in memory against the real file system: the same operations in any order, the same answers.

And its crashes: what was synced is there, and nothing is there that was never written.
"""

import shutil
import tempfile
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from milena.disk.os_files import OsFiles
from milena.model.errors import MilenaError
from tests.support.disk.memory_files import MemoryFiles

FILES = ("a", "b", "sub/a", "sub/deep/a")
FOLDERS = ("sub", "sub/deep")
file_names = st.sampled_from(FILES)
folder_names = st.sampled_from(FOLDERS)
chunks = st.lists(st.binary(max_size=40), max_size=3)
positions = st.integers(0, 120)


class SameAnswers(RuleBasedStateMachine):
    """Runs every operation on both; answers, errors and what is left must agree."""

    handles = Bundle("handles")

    def __init__(self):
        super().__init__()
        self.root = tempfile.mkdtemp()
        self.real = OsFiles()
        self.twin = MemoryFiles()
        self.twin.make_directory(self.root)
        self.open_files = []

    def teardown(self):
        for real, _ in self.open_files:
            real.close()
        shutil.rmtree(self.root)

    def both(self, call):
        answers = []
        for files in (self.real, self.twin):
            try:
                answers.append(call(files))
            except (FileNotFoundError, MilenaError) as error:
                answers.append(type(error))
        assert answers[0] == answers[1]
        return answers[0]

    def path(self, name):
        return f"{self.root}/{name}"

    @rule(target=handles, name=file_names)
    def create(self, name):
        return self.open_both(name, create=True)

    @rule(target=handles, name=file_names | folder_names)
    def open(self, name):
        return self.open_both(name, create=False)

    def open_both(self, name, *, create):
        pair = []
        for files in (self.real, self.twin):
            try:
                pair.append(files.open(self.path(name), create=create))
            except (FileNotFoundError, MilenaError) as error:
                pair.append(type(error))
        if isinstance(pair[0], type):
            assert pair[0] is pair[1]
            return None
        self.open_files.append(tuple(pair))
        return tuple(pair)

    @rule(pair=handles, content=chunks, position=positions)
    def write(self, pair, content, position):
        if pair:
            assert pair[0].pwritev(content, position) == pair[1].pwritev(content, position)

    @rule(pair=handles, length=positions, position=positions)
    def read(self, pair, length, position):
        if pair:
            expected = pair[0].pread(length, position)
            assert pair[1].pread(length, position) == expected
            assert pair[0].pread_cached(length, position) in (None, expected)
            assert pair[1].pread_cached(length, position) == expected

    @rule(pair=handles, size=positions)
    def allocate(self, pair, size):
        if pair:
            pair[0].allocate(size)
            pair[1].allocate(size)
            assert pair[0].size() == pair[1].size()

    @rule(pair=handles, size=positions)
    def truncate(self, pair, size):
        if pair:
            pair[0].truncate(size)
            pair[1].truncate(size)
            assert pair[0].size() == pair[1].size()

    @rule(name=file_names, content=st.binary(max_size=50))
    def write_atomically(self, name, content):
        self.both(lambda files: files.write_atomically(self.path(name), content))

    @rule(name=folder_names)
    def make_directory(self, name):
        self.both(lambda files: files.make_directory(self.path(name)))

    @rule(name=file_names)
    def remove(self, name):
        self.both(lambda files: files.remove(self.path(name)))

    @rule(name=folder_names)
    def remove_tree(self, name):
        self.both(lambda files: files.remove_tree(self.path(name)))

    @rule(old=st.sampled_from(["a", "sub/a"]), new=st.sampled_from(["b", "sub/deep/a", "a"]))
    def rename(self, old, new):
        self.both(lambda files: files.rename_durably(self.path(old), self.path(new)))

    @rule(name=folder_names)
    def sync_directory(self, name):
        self.both(lambda files: files.sync_directory(self.path(name)))

    @invariant()
    def the_same_is_left(self):
        for folder in ("", *FOLDERS):
            self.both(lambda files, folder=folder: files.list_directory(self.path(folder)))
        for name in FILES:
            self.both(lambda files, name=name: files.exists(self.path(name)))
            self.both(lambda files, name=name: files.read_bytes(self.path(name)))


SameAnswers.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSameAnswers = SameAnswers.TestCase


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 3000), st.integers(1, 1500)),
            st.tuples(st.just("truncate"), st.integers(0, 3000)),
            st.tuples(st.just("sync")),
        ),
        max_size=12,
    ),
    st.integers(0, 1 << 30),
    st.sampled_from(["none", "some", "all"]),
)
def test_a_crash_keeps_what_was_synced_and_invents_nothing(steps, seed, keep):
    files = MemoryFiles()
    files.make_directory("/d")
    file = files.open("/d/a", create=True)
    files.sync_directory("/d")
    synced = bytearray()
    untouched = 1 << 30
    written = [{0} for _ in range(5000)]
    for number, step in enumerate(steps, start=1):
        if step[0] == "sync":
            file.sync()
            synced, untouched = bytearray(file.pread(5000, 0)), 1 << 30
            written = [{0, *synced[at : at + 1]} for at in range(5000)]
        elif step[0] == "truncate":
            untouched = min(untouched, step[1], file.size())
            file.truncate(step[1])
        else:
            untouched = min(untouched, step[1], file.size())
            file.pwritev([bytes([number]) * step[2]], step[1])
            for at in range(step[1], step[1] + step[2]):
                written[at].add(number)
    live = file.pread(5000, 0)
    files.crash(Random(seed), keep)
    content = files.read_bytes("/d/a")
    if keep == "all":
        assert content == live
    elif keep == "none":
        assert content == synced
    # Below the first byte that was touched since the last sync nothing changes.
    assert content[:untouched] == synced[:untouched]
    assert all(byte in written[at] for at, byte in enumerate(content))
    files.crash(Random(seed), "some")
    assert files.read_bytes("/d/a") == content
