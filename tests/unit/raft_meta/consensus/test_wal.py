"""The durable log: what survives, what is cut, what is refused, and what a full disk leaves possible."""

import random

import msgpack
import pytest

from milena.model.errors import CorruptLogError, DiskFailedError, DiskFullError
from raft_meta.consensus.messages import Entry
from raft_meta.consensus.wal import Wal
from tests.support.disk.memory_files import MemoryFiles, SimulatedCrashError

PATH = "/raft/wal"


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    made.make_directory("/raft")
    return made


def open_wal(files: MemoryFiles) -> Wal:
    return Wal(files, PATH, room_step_bytes=4096, reserve_bytes=1024)


def entry(index: int, term: int = 1, size: int = 4) -> Entry:
    return (bytes([index % 256]) * size, index, term)


def filled(files: MemoryFiles, last: int, first: int = 1) -> Wal:
    wal = open_wal(files)
    for index in range(first, last + 1):
        wal.append(entry(index))
        wal.sync()
    return wal


def reopened(files: MemoryFiles, keep: str = "none") -> Wal:
    files.crash(random.Random(1), keep)  # type: ignore[arg-type]  # one of its literals
    return open_wal(files)


def test_a_new_log_is_empty(files: MemoryFiles) -> None:
    wal = open_wal(files)
    assert (wal.entries, wal.term, wal.voted_for, wal.cut_bytes) == ([], 0, None, 0)


def test_synced_records_survive_a_power_cut(files: MemoryFiles) -> None:
    wal = filled(files, 5)
    wal.set_hard_state(7, 3)
    wal.truncate_from(4)
    wal.append(entry(4, term=7))
    wal.sync()
    found = reopened(files)
    assert found.entries == [*(entry(i) for i in (1, 2, 3)), entry(4, term=7)]
    assert (found.term, found.voted_for) == (7, 3)


def test_what_was_not_synced_is_lost_as_a_whole(files: MemoryFiles) -> None:
    wal = filled(files, 2)
    wal.append(entry(3))
    wal.set_hard_state(9, 1)
    assert wal.is_dirty
    found = reopened(files)
    assert (len(found.entries), found.term) == (2, 0)


def test_a_vote_for_nobody_is_kept_apart_from_a_vote_for_node_zero(files: MemoryFiles) -> None:
    wal = open_wal(files)
    wal.set_hard_state(1, 0)
    wal.sync()
    assert reopened(files).voted_for == 0
    again = open_wal(files)
    again.set_hard_state(2, None)
    again.sync()
    assert reopened(files).voted_for is None


def test_an_unchanged_hard_state_is_not_written_again(files: MemoryFiles) -> None:
    wal = open_wal(files)
    wal.set_hard_state(1, 2)
    wal.sync()
    wal.set_hard_state(1, 2)
    assert not wal.is_dirty


def test_sync_without_records_does_not_touch_the_disk(files: MemoryFiles) -> None:
    wal = filled(files, 1)
    before = files.operation_count
    wal.sync()
    assert files.operation_count == before


def test_many_records_are_one_write_and_one_sync(files: MemoryFiles) -> None:
    wal = filled(files, 1)
    before = files.operations.copy()
    for index in range(2, 50):
        wal.append(entry(index))
    wal.sync()
    assert files.operations - before == {"write": 1, "sync": 1}


def test_an_entry_that_leaves_a_gap_is_a_broken_invariant(files: MemoryFiles) -> None:
    wal = filled(files, 2)
    with pytest.raises(AssertionError, match="entry 4 does not follow 2"):
        wal.append(entry(4))


def test_truncation_beyond_the_end_does_nothing(files: MemoryFiles) -> None:
    wal = filled(files, 3)
    wal.truncate_from(4)
    assert len(wal.entries) == 3
    assert not wal.is_dirty


@pytest.mark.parametrize("seed", range(40))
def test_a_torn_tail_is_cut_and_never_read_again(files: MemoryFiles, seed: int) -> None:
    wal = filled(files, 3)
    for index in range(4, 30):
        wal.append(entry(index, size=100))
    files.crash_before(1)  # the write is done, the sync is not
    with pytest.raises(SimulatedCrashError):
        wal.sync()
    files.crash(random.Random(seed), "some")
    found = open_wal(files)
    assert len(found.entries) in {3, 29}
    count = len(found.entries)
    found.append(entry(count + 1))
    found.sync()
    again = reopened(files)
    assert [index for _, index, _ in again.entries] == list(range(1, count + 2))


def test_what_a_killed_process_wrote_is_made_durable_before_it_is_used(
    files: MemoryFiles,
) -> None:
    wal = filled(files, 1)
    wal.append(entry(2))
    files.crash_before(1)
    with pytest.raises(SimulatedCrashError):
        wal.sync()
    files.kill()
    assert len(open_wal(files).entries) == 2
    assert len(reopened(files).entries) == 2


def group_starts(files: MemoryFiles) -> list[int]:
    content = files.read_bytes(PATH)
    starts, at = [], content.find(b"MWAL")
    while at >= 0:
        starts.append(at)
        at = content.find(b"MWAL", at + 1)
    return starts


@pytest.mark.parametrize("part", [0, 5, 9, 17, 22])
def test_damage_before_a_valid_group_refuses_to_start(files: MemoryFiles, part: int) -> None:
    filled(files, 5).close()
    files.flip_bit(PATH, group_starts(files)[2] + part)
    with pytest.raises(CorruptLogError, match="a synced group follows"):
        open_wal(files)


def test_damage_in_the_last_group_is_a_torn_tail(files: MemoryFiles) -> None:
    filled(files, 5).close()
    files.flip_bit(PATH, group_starts(files)[-1] + 22)
    found = open_wal(files)
    assert len(found.entries) == 4
    assert found.cut_bytes > 0


def test_a_log_of_another_format_version_is_refused(files: MemoryFiles) -> None:
    wal = open_wal(files)
    wal._pending = [msgpack.packb((0, 99))]
    wal.sync()
    with pytest.raises(CorruptLogError, match="format version 99"):
        open_wal(files)


@pytest.mark.parametrize("record", [(9, 1), (1, "text", 1, 1), (1, b"x", 7, 1), (3,)])
def test_a_record_that_contradicts_the_format_is_refused(
    files: MemoryFiles, record: tuple[object, ...]
) -> None:
    wal = filled(files, 1)
    wal._pending = [msgpack.packb(record)]
    wal.sync()
    with pytest.raises(CorruptLogError):
        open_wal(files)


def test_a_failed_sync_is_final(files: MemoryFiles) -> None:
    wal = filled(files, 1)
    wal.append(entry(2))
    files.fail_next_sync("wal")
    with pytest.raises(DiskFailedError):
        wal.sync()
    with pytest.raises(DiskFailedError, match="failed before"):
        wal.sync()
    with pytest.raises(DiskFailedError, match="failed before"):
        wal.drop_before(1)
    wal.close()


def test_compaction_keeps_the_suffix_and_the_hard_state(files: MemoryFiles) -> None:
    wal = filled(files, 100)
    wal.set_hard_state(3, 2)
    wal.append(entry(101))
    before = wal.size_bytes
    wal.drop_before(90)
    assert wal.size_bytes < before
    assert not wal.is_dirty
    found = reopened(files)
    assert found.entries == [entry(index) for index in range(90, 102)]
    assert (found.term, found.voted_for) == (3, 2)
    found.append(entry(102))
    found.sync()
    assert reopened(files).entries[-1] == entry(102)


def test_compaction_is_whole_or_not_at_all_wherever_a_crash_falls(files: MemoryFiles) -> None:
    for number in range(20):
        for keep in ("none", "some", "all"):
            fresh = MemoryFiles()
            fresh.make_directory("/raft")
            wal = filled(fresh, 10)
            fresh.crash_before(number)
            try:
                wal.drop_before(8)
                is_done = True
            except SimulatedCrashError:
                is_done = False
            found = reopened(fresh, keep)
            assert found.entries[-1] == entry(10)
            assert found.entries[0][1] == 8 if is_done else found.entries[0][1] in {1, 8}


def test_restarting_with_other_entries_is_durable_at_once(files: MemoryFiles) -> None:
    wal = filled(files, 10)
    wal.restart_with([entry(50), entry(51)])
    assert reopened(files).entries == [entry(50), entry(51)]


def test_position_of_an_entry_needs_index_and_term(files: MemoryFiles) -> None:
    wal = filled(files, 9, first=5)
    assert wal.position_of(entry(7)) == 2
    assert wal.position_of(entry(7, term=2)) is None
    assert wal.position_of(entry(4)) is None
    assert wal.position_of(entry(10)) is None


def test_a_full_disk_refuses_proposals_and_leaves_the_reserve(files: MemoryFiles) -> None:
    wal = filled(files, 1)
    files.capacity = files.used_bytes()
    index = 2
    while wal.has_room(100):
        wal.append(entry(index, size=100))
        wal.sync()
        index += 1
    assert not wal.has_room(100)
    assert wal.has_room(10, is_urgent=True)
    for term in range(5, 15):
        wal.set_hard_state(term, None)
        wal.sync()
    files.capacity = None
    assert wal.has_room(100)


def test_room_is_asked_for_all_entries_of_a_batch(files: MemoryFiles) -> None:
    wal = filled(files, 1)
    files.capacity = files.used_bytes()
    assert wal.has_room(100, count=1)
    assert not wal.has_room(100, count=1000)


def test_compaction_on_a_full_disk_keeps_the_old_file(files: MemoryFiles) -> None:
    wal = filled(files, 50)
    files.capacity = files.used_bytes()
    wal.drop_before(40)
    assert wal.entries[0] == entry(40)
    wal.append(entry(51))
    wal.sync()
    assert not files.exists(PATH + ".new")
    assert [index for _, index, _ in reopened(files).entries] == list(range(1, 52))


def test_restarting_on_a_full_disk_is_whole_or_not_at_all(files: MemoryFiles) -> None:
    wal = filled(files, 10)
    files.capacity = files.used_bytes()
    wal.restart_with([entry(50), entry(51)])
    assert len(reopened(files).entries) == 10
    wal = open_wal(files)
    files.capacity = files.used_bytes()
    wal.restart_with([entry(50), entry(51)])
    wal.sync()
    assert reopened(files).entries == [entry(50), entry(51)]


def test_restarting_forgets_what_a_compaction_could_not_take_off_a_full_disk(
    files: MemoryFiles,
) -> None:
    wal = filled(files, 10)
    files.capacity = files.used_bytes()
    wal.drop_before(8)
    wal.restart_with([entry(50), entry(51)])
    wal.sync()
    assert reopened(files).entries == [entry(50), entry(51)]


def test_truncation_reaches_below_the_entries_that_a_full_disk_has_kept(files: MemoryFiles) -> None:
    wal = filled(files, 10)
    files.capacity = files.used_bytes()
    wal.drop_before(8)
    wal.truncate_from(5)
    wal.append(entry(5, term=2))
    wal.sync()
    assert reopened(files).entries == [*(entry(i) for i in range(1, 5)), entry(5, term=2)]


def test_without_any_reserve_left_sync_raises(files: MemoryFiles) -> None:
    wal = filled(files, 1)
    files.capacity = files.used_bytes()
    wal.append(entry(2, size=10_000))
    with pytest.raises(DiskFullError):
        wal.sync()


def test_a_failed_rewrite_is_final(files: MemoryFiles) -> None:
    wal = filled(files, 5)
    files.fail_next_sync("wal.new")
    with pytest.raises(DiskFailedError):
        wal.drop_before(3)
    with pytest.raises(DiskFailedError, match="failed before"):
        wal.drop_before(3)
    wal.abandon()


def test_a_node_starts_on_a_full_disk_after_a_torn_tail(files: MemoryFiles) -> None:
    wal = filled(files, 3)
    for index in range(4, 20):
        wal.append(entry(index, size=100))
    files.crash_before(1)
    with pytest.raises(SimulatedCrashError):
        wal.sync()
    files.flip_bit(PATH, group_starts(files)[-1] + 30)
    files.crash(keep="all")
    files.capacity = files.used_bytes()
    found = open_wal(files)
    assert found.cut_bytes > 0
    for term in range(1, 10):
        found.set_hard_state(term, None)
        found.sync()
    assert reopened(files).term == 9


def test_a_half_written_file_of_a_compaction_is_removed(files: MemoryFiles) -> None:
    filled(files, 3).close()
    files.write_atomically(PATH + ".new", b"half")
    open_wal(files)
    assert not files.exists(PATH + ".new")
