"""What the twin in memory adds to the promises of a file system: the ways to break them."""

from random import Random

import pytest

from milena.model.errors import CorruptLogError, DiskFailedError, DiskFullError, StartupError
from tests.support.disk.memory_files import SECTOR_BYTES, MemoryFiles, SimulatedCrashError


@pytest.fixture
def files():
    files = MemoryFiles()
    files.make_directory("/d")
    return files


def durable(files, path, content):
    file = files.open(path, create=True)
    file.pwritev([content], 0)
    file.sync()
    files.sync_directory("/d")
    return file


def test_a_crash_drops_unsynced_bytes(files):
    file = durable(files, "/d/a", b"synced")
    file.pwritev([b"xx"], 2)
    file.pwritev([b"lost"], 6)
    files.crash()
    assert files.read_bytes("/d/a") == b"synced"


def test_a_crash_drops_names_whose_folder_was_not_synced(files):
    file = files.open("/d/a", create=True)
    file.pwritev([b"x"], 0)
    file.sync()
    files.crash()
    assert files.list_directory("/d") == []


def test_a_crash_takes_back_removals_whose_folder_was_not_synced(files):
    durable(files, "/d/a", b"x")
    files.remove("/d/a")
    files.crash()
    assert files.read_bytes("/d/a") == b"x"
    files.remove("/d/a")
    files.sync_directory("/d")
    files.crash()
    assert not files.exists("/d/a")


def test_a_crash_may_keep_everything(files):
    files.open("/d/a", create=True).pwritev([b"x"], 0)
    files.crash(keep="all")
    assert files.read_bytes("/d/a") == b"x"
    files.crash()
    assert files.read_bytes("/d/a") == b"x"


def test_a_name_may_survive_without_its_bytes(files):
    files.open("/d/a", create=True).pwritev([b"x"], 0)
    files.sync_directory("/d")
    files.crash()
    assert files.read_bytes("/d/a") == b""


def test_an_unsynced_truncation_comes_back(files):
    durable(files, "/d/a", b"stale bytes").truncate(0)
    files.crash()
    assert files.read_bytes("/d/a") == b"stale bytes"


def test_a_synced_truncation_stays(files):
    file = durable(files, "/d/a", b"stale bytes")
    file.truncate(2)
    file.pwritev([b"XY"], 4)
    file.sync()
    files.crash()
    assert files.read_bytes("/d/a") == b"st\0\0XY"


def test_some_crashes_tear_a_write_by_sectors(files):
    seen = set()
    for seed in range(60):
        files = MemoryFiles()
        files.make_directory("/d")
        durable(files, "/d/a", b"o" * 4 * SECTOR_BYTES).pwritev([b"n" * 4 * SECTOR_BYTES], 0)
        files.crash(Random(seed), keep="some")
        content = files.read_bytes("/d/a")
        sectors = [content[at : at + SECTOR_BYTES] for at in range(0, len(content), SECTOR_BYTES)]
        assert all(sector in (b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES) for sector in sectors)
        seen.add("".join(chr(sector[0]) for sector in sectors))
    assert {"oooo", "nnnn", "nnoo"} <= seen
    assert any("on" in state for state in seen)


def test_some_crashes_leave_any_size_between(files):
    sizes = set()
    for seed in range(60):
        files = MemoryFiles()
        files.make_directory("/d")
        durable(files, "/d/a", b"12").pwritev([b"3456"], 2)
        files.crash(Random(seed), keep="some")
        content = files.read_bytes("/d/a")
        assert all(
            byte in (0, expected) for byte, expected in zip(content, b"123456", strict=False)
        )
        sizes.add(len(content))
    assert sizes == {2, 3, 4, 5, 6}


def test_some_crashes_keep_a_prefix_of_the_names(files):
    seen = set()
    for seed in range(40):
        files = MemoryFiles()
        files.make_directory("/d")
        for name in "abc":
            files.open(f"/d/{name}", create=True)
        files.crash(Random(seed), keep="some")
        seen.add("".join(files.list_directory("/d")))
    assert seen == {"", "a", "ab", "abc"}


def test_a_rename_is_whole_or_not_at_all(files):
    durable(files, "/d/a", b"a")
    files.on_operation = lambda kind, path: crash_now(kind, path, "sync_directory")
    with pytest.raises(SimulatedCrashError):
        files.rename_durably("/d/a", "/d/b")
    files.on_operation = None
    files.crash(Random(0), keep="some")
    assert len(files.list_directory("/d")) == 1


def crash_now(kind, path, wanted):
    if kind == wanted:
        raise SimulatedCrashError(path)


def test_a_renamed_folder_is_there_after_a_crash(files):
    files.make_directory("/d/old")
    files.write_atomically("/d/old/a", b"x")
    files.rename_durably("/d/old", "/d/new")
    files.crash()
    assert files.paths() == ["/d/new/a"]


def test_a_removed_folder_takes_what_is_in_it_along(files):
    files.make_directory("/d/sub")
    files.write_atomically("/d/sub/a", b"x")
    files.remove_tree("/d/sub")
    files.sync_directory("/d")
    files.crash()
    assert not files.exists("/d/sub/a")
    files.make_directory("/d/sub")
    assert files.list_directory("/d/sub") == []


def test_a_killed_process_leaves_what_it_wrote_but_not_durably(files):
    durable(files, "/d/a", b"old").pwritev([b"new"], 0)
    files.kill()
    assert files.read_bytes("/d/a") == b"new"
    files.crash()
    assert files.read_bytes("/d/a") == b"old"


def test_handles_and_locks_do_not_outlive_their_process(files):
    file = durable(files, "/d/a", b"x")
    lock = files.lock("/d/lock")
    with pytest.raises(StartupError):
        files.lock("/d/lock")
    files.kill()
    again = files.lock("/d/lock")
    lock.release()
    with pytest.raises(StartupError):
        files.lock("/d/lock")
    again.release()
    with pytest.raises(AssertionError, match="before the crash"):
        file.pread(1, 0)


def test_a_closed_handle_is_of_no_use(files):
    file = durable(files, "/d/a", b"x")
    file.close()
    assert file.is_closed
    with pytest.raises(AssertionError, match="closed"):
        file.size()


def test_capacity_counts_all_files_and_removal_makes_room(files):
    durable(files, "/d/a", b"x" * 60)
    files.capacity = 100
    other = files.open("/d/b", create=True)
    with pytest.raises(DiskFullError, match="/d/b"):
        other.pwritev([b"y" * 41], 0)
    assert other.size() == 0
    assert files.free_bytes("/d") == 40
    assert other.pwritev([b"y" * 40], 0) == 40
    assert other.pwritev([b"z" * 40], 0) == 40
    files.remove("/d/a")
    other.allocate(100)
    with pytest.raises(DiskFullError):
        other.allocate(101)


def test_a_flipped_bit_is_there_before_and_after_a_crash(files):
    durable(files, "/d/a", b"\x00\x00")
    files.flip_bit("/d/a", 1, 3)
    assert files.read_bytes("/d/a") == b"\x00\x08"
    files.crash()
    assert files.read_bytes("/d/a") == b"\x00\x08"


def test_an_unsynced_byte_can_be_flipped_too(files):
    durable(files, "/d/a", b"").pwritev([b"\0"], 0)
    files.flip_bit("/d/a", 0)
    assert files.read_bytes("/d/a") == b"\1"


def test_overwritten_bytes_are_on_the_disk(files):
    durable(files, "/d/a", b"abc")
    files.overwrite("/d/a", 1, b"XYZ")
    files.crash()
    assert files.read_bytes("/d/a") == b"aXYZ"


def test_a_failed_sync_loses_the_bytes_and_fails_ever_after(files):
    file = durable(files, "/d/a", b"old")
    file.pwritev([b"new"], 0)
    files.fail_next_sync("/d/a")
    for _ in range(2):
        with pytest.raises(DiskFailedError):
            file.sync()
    files.crash()
    assert files.read_bytes("/d/a") == b"old"
    files.open("/d/a").sync()


def test_failures_wait_for_the_path_that_was_named(files):
    a, b = durable(files, "/d/a", b"a"), durable(files, "/d/b", b"b")
    files.fail_next_write("/d/b")
    files.fail_next_read("/d/b")
    files.fail_next_sync("/d")
    a.pwritev([b"x"], 0)
    assert a.pread(1, 0) == b"x"
    with pytest.raises(DiskFailedError):
        b.pwritev([b"x"], 0)
    with pytest.raises(CorruptLogError):
        b.pread(1, 0)
    assert b.pread(1, 0) == b"b"
    with pytest.raises(DiskFailedError):
        files.sync_directory("/d")


def test_an_evicted_file_is_cold_until_it_was_read(files):
    file = durable(files, "/d/a", b"abc")
    assert file.pread_cached(2, 1) == b"bc"
    files.evict("/d/a")
    assert file.pread_cached(2, 1) is None
    assert file.pread(1, 0) == b"a"
    assert file.pread_cached(2, 1) == b"bc"
    assert file.fileno() == -1


def test_operations_are_counted_and_can_be_watched(files):
    seen = []
    files.on_operation = lambda kind, path: seen.append((kind, path))
    files.operations.clear()
    files.write_atomically("/d/a", b"x")
    assert seen == [
        ("create", "/d/a.tmp"),
        ("truncate", "/d/a.tmp"),
        ("write", "/d/a.tmp"),
        ("sync", "/d/a.tmp"),
        ("rename", "/d/a.tmp"),
        ("sync_directory", "/d"),
    ]
    assert files.operation_count == 6
    assert files.paths() == ["/d/a"]


def test_the_world_stops_before_the_chosen_operation(files):
    for number in range(6):
        files = MemoryFiles()
        files.make_directory("/d")
        files.write_atomically("/d/a", b"old")
        files.crash_before(number)
        with pytest.raises(SimulatedCrashError):
            files.write_atomically("/d/a", b"new")
        with pytest.raises(SimulatedCrashError):
            files.remove("/d/a")
        files.crash()
        assert files.read_bytes("/d/a") == b"old"
    files.crash_before(6)
    files.write_atomically("/d/a", b"new")
    files.crash()
    assert files.read_bytes("/d/a") == b"new"


def test_relative_paths_are_paths_too():
    files = MemoryFiles()
    files.make_directory("data/x")
    files.write_atomically("data/x/a", b"1")
    assert files.list_directory("data") == ["x"]
    assert files.list_directory(".") == ["data"]
    files.crash()
    assert files.read_bytes("./data//x/a") == b"1"
