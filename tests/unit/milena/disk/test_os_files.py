"""How the system's errors and half-done calls become ours; the rest is in the conformance suite."""

import ctypes
import errno
import mmap
import os

import pytest

from milena.disk import cached_reads
from milena.disk.os_files import OsFiles
from milena.model.errors import CorruptLogError, DiskFailedError, DiskFullError


@pytest.fixture
def files():
    return OsFiles()


@pytest.fixture
def file(files, tmp_path):
    file = files.open(str(tmp_path / "a"), create=True)
    yield file
    file.close()


def failing(number):
    def call(*_args):
        raise OSError(number, os.strerror(number))

    return call


def in_turn(*calls):
    left = iter(calls)

    def call(*arguments):
        return next(left)(*arguments)

    return call


def test_a_short_write_is_gone_on_with(file, monkeypatch):
    real = os.pwritev
    calls = []

    def pwritev(descriptor, chunks, position):
        calls.append(position)
        return real(descriptor, [b"".join(chunks)[:3]], position)

    monkeypatch.setattr(os, "pwritev", pwritev)
    assert file.pwritev([b"ab", b"", b"cdef", b"gh"], 10) == 8
    assert calls == [10, 13, 16]
    assert file.pread(8, 10) == b"abcdefgh"


def test_a_write_without_progress_fails(file, monkeypatch):
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(DiskFailedError, match="no progress"):
        file.pwritev([b"x"], 0)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_in_the_middle_takes_the_part_back(file, monkeypatch, number):
    file.pwritev([b"head"], 0)
    real = os.pwritev
    partial = in_turn(lambda *a: real(a[0], [b"part"], a[2]), failing(number))
    monkeypatch.setattr(os, "pwritev", partial)
    with pytest.raises(DiskFullError, match=file.path):
        file.pwritev([b"partial write"], 4)
    assert file.pread(100, 0) == b"head"


def test_a_full_disk_inside_preallocated_room_keeps_the_size(file, monkeypatch):
    file.allocate(100)
    monkeypatch.setattr(os, "pwritev", failing(errno.ENOSPC))
    with pytest.raises(DiskFullError):
        file.pwritev([b"x"], 0)
    assert file.size() == 100


def test_any_other_failure_of_a_write_is_a_failed_disk(file, monkeypatch):
    monkeypatch.setattr(os, "pwritev", failing(errno.EIO))
    with pytest.raises(DiskFailedError, match=r"Input/output error"):
        file.pwritev([b"x"], 0)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_never_retried(file, monkeypatch, number):
    monkeypatch.setattr(os, "fdatasync", failing(number))
    with pytest.raises(DiskFailedError, match="cannot sync"):
        file.sync()
    monkeypatch.undo()
    with pytest.raises(DiskFailedError, match="earlier sync"):
        file.sync()


def test_zeros_are_written_where_the_file_system_cannot_allocate(file, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.EOPNOTSUPP))
    file.pwritev([b"head"], 0)
    file.allocate((2 << 20) + 5)
    assert file.pread(3 << 20, 0) == b"head" + bytes((2 << 20) + 1)


def test_a_full_disk_takes_a_part_of_the_allocation_back(file, monkeypatch):
    def fallocate(descriptor, position, length):
        os.ftruncate(descriptor, position + length // 2)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    with pytest.raises(DiskFullError):
        file.allocate(1000)
    assert file.size() == 0


def test_another_failure_of_the_allocation_is_a_failed_disk(file, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.EIO))
    with pytest.raises(DiskFailedError):
        file.allocate(1000)


def test_an_unreadable_place_is_damage_of_the_log_and_not_of_the_process(file, monkeypatch):
    monkeypatch.setattr(os, "pread", failing(errno.EIO))
    with pytest.raises(CorruptLogError, match=r"4 bytes at 8"):
        file.pread(4, 8)


def test_a_short_read_is_gone_on_with(file, monkeypatch):
    file.pwritev([b"0123456789"], 0)
    real = os.pread
    monkeypatch.setattr(
        os, "pread", lambda descriptor, length, at: real(descriptor, min(length, 3), at)
    )
    assert file.pread(7, 1) == b"1234567"
    assert file.pread(100, 4) == b"456789"


def test_the_descriptor_is_there_for_reads_of_the_event_loop(file):
    file.pwritev([b"x"], 0)
    assert os.pread(file.fileno(), 1, 0) == b"x"


class TestCachedRead:
    def test_a_cold_page_is_declined(self, file, monkeypatch):
        file.pwritev([b"x" * 100], 0)
        monkeypatch.setattr(cached_reads, "read_into", lambda *_: -1)
        assert file.pread_cached(4, 0) is None

    def test_a_cold_page_behind_a_cached_one_is_declined(self, file, monkeypatch):
        real = cached_reads.read_into
        file.pwritev([b"x" * 100], 0)
        partial = in_turn(lambda d, address, _, at: real(d, address, 10, at), lambda *_: -1)
        monkeypatch.setattr(cached_reads, "read_into", partial)
        assert file.pread_cached(50, 0) is None

    def test_a_short_result_is_gone_on_with(self, file, monkeypatch):
        real = cached_reads.read_into
        file.pwritev([b"0123456789"], 0)
        monkeypatch.setattr(
            cached_reads,
            "read_into",
            lambda d, address, length, at: real(d, address, min(length, 3), at),
        )
        assert file.pread_cached(8, 1) == b"12345678"
        assert file.pread_cached(80, 4) == b"456789"

    def test_what_the_page_cache_has_is_what_a_read_that_waits_finds(self, file):
        content = os.urandom((2 << 20) + 99)
        file.pwritev([content], 0)
        assert file.pread_cached(len(content), 0) == content
        assert file.pread_cached((2 << 20) + 7, 3) == content[3 : (2 << 20) + 10]
        assert file.pread_cached(1, 98) == content[98:99]
        assert file.pread_cached(5, len(content) - 2) == content[-2:]
        assert file.pread_cached(5, len(content)) == file.pread_cached(0, 7) == b""

    def test_what_was_dropped_from_the_page_cache_is_declined(self, file):
        file.pwritev([b"x" * (1 << 20)], 0)
        file.sync()

        def is_declined():
            drop(file)
            return file.pread_cached(1 << 20, 0) is None

        # The call makes the kernel read what is missing. On a busy machine that may end before the call does.
        assert any(is_declined() for _ in range(20))

    def test_no_more_is_asked_for_at_a_time_than_the_disk_may_be_kept_busy_with(
        self, file, monkeypatch
    ):
        asked = []
        monkeypatch.setattr(cached_reads, "read_into", lambda *what: asked.append(what[2:]) or -1)
        assert file.pread_cached(8 << 20, 5) is None
        assert asked == [(1 << 20, 5)]

    def test_a_descriptor_that_cannot_be_read_is_declined(self, file):
        file.close()
        assert file.pread_cached(4, 0) is None


class TestReadAhead:
    """The system would read as far ahead as it is set up to, and that may be 8 MB, which all syncs wait behind."""

    def test_no_more_of_a_cold_file_is_read_than_was_asked_for(self, file):
        file.pwritev([b"x" * (1 << 20)], 0)
        file.sync()
        drop(file)
        for at in range(0, 64 << 10, 4096):
            assert file.pread(4096, at) == b"x" * 4096
        assert cached_bytes(file, 1 << 20) <= 80 << 10

    def test_the_disk_is_asked_for_a_megabyte_at_a_time_and_for_as_much_behind_it(
        self, file, monkeypatch
    ):
        content = os.urandom((2 << 20) + (64 << 10))
        file.pwritev([content, b"x" * (1 << 20)], 0)
        real, asked = os.pread, []

        def pread(descriptor, length, position):
            asked.append((position, length))
            return real(descriptor, length, position)

        monkeypatch.setattr(os, "pread", pread)
        monkeypatch.setattr(os, "posix_fadvise", lambda _, *what: asked.append(what))
        assert file.pread(len(content), 0) == content
        assert asked == [
            (0, 1 << 20),
            (1 << 20, 1 << 20, os.POSIX_FADV_WILLNEED),
            (1 << 20, 1 << 20),
            (2 << 20, 1 << 20, os.POSIX_FADV_WILLNEED),
            (2 << 20, 64 << 10),
            (len(content), 64 << 10, os.POSIX_FADV_WILLNEED),
        ]

    def test_nothing_is_read_ahead_of_a_small_read_or_behind_the_end(self, file, monkeypatch):
        file.pwritev([b"x" * (64 << 10)], 0)
        advice = []
        monkeypatch.setattr(os, "posix_fadvise", lambda _, *what: advice.append(what))
        assert len(file.pread((64 << 10) - 1, 0)) == (64 << 10) - 1
        assert file.pread(1 << 20, 1) == b"x" * ((64 << 10) - 1)
        assert file.pread(1 << 20, 64 << 10) == b""
        assert advice == []

    def test_a_system_that_takes_no_advice_reads_nevertheless(self, files, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "posix_fadvise", failing(errno.ENOSYS))
        file = files.open(str(tmp_path / "a"), create=True)
        file.pwritev([b"x" * (1 << 20)], 0)
        assert file.pread(512 << 10, 0) == b"x" * (512 << 10)
        file.close()


def drop(file):
    """Take a file out of the page cache. To find out by reading it, even without waiting, may bring it back."""
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_bytes(file, mmap.PAGESIZE):
        pytest.skip("this file system keeps its pages in memory")


def cached_bytes(file, size):
    """How much of a file is in the page cache: to read it would bring it there."""
    pages = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    with mmap.mmap(file.fileno(), size) as mapped:
        window = (ctypes.c_ubyte * size).from_buffer(mapped)
        assert ctypes.CDLL(None).mincore(window, ctypes.c_size_t(size), pages) == 0
        del window
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


class TestReadOnce:
    def test_it_reads_what_is_there(self, file):
        file.pwritev([b"x" * 40_000 + b"y" * 9], 0)
        assert file.pread_once(20, 39_995) == b"x" * 5 + b"y" * 9
        assert file.pread_once(5, 50_000) == b""

    def test_only_what_was_not_cached_is_dropped_again(self, file, monkeypatch):
        file.pwritev([b"x" * 200_000], 0)
        real, piece = os.preadv, 16 << 10
        monkeypatch.setattr(
            os,
            "preadv",
            lambda descriptor, views, at, _: (
                real(descriptor, views, at) if at in {0, 5 * piece} else 10
            ),
        )
        advice = []
        monkeypatch.setattr(os, "posix_fadvise", lambda _, *what: advice.append(what))
        assert file.pread_once(100_000, 100) == b"x" * 100_000
        assert file.pread_once(10, 0) == b"x" * 10
        assert advice == [
            (piece, 4 * piece, os.POSIX_FADV_DONTNEED),
            (6 * piece, piece, os.POSIX_FADV_DONTNEED),
        ]


class Calls:
    """The order in which the system is asked for what."""

    def __init__(self, monkeypatch):
        self.seen = []
        for name in ("open", "pwritev", "ftruncate", "fdatasync", "fsync", "replace", "mkdir"):
            monkeypatch.setattr(os, name, self.recorded(name, getattr(os, name)))

    def recorded(self, name, real):
        def call(*arguments):
            names = [os.path.basename(a) for a in arguments if isinstance(a, str)]
            self.seen.append(" ".join([name, *names]))
            return real(*arguments)

        return call


def test_an_atomic_write_is_written_synced_renamed_and_the_folder_synced(
    files, tmp_path, monkeypatch
):
    calls = Calls(monkeypatch)
    files.write_atomically(str(tmp_path / "d"), b"content")
    assert [call for call in calls.seen if not call.startswith("open")] == [
        "ftruncate",
        "pwritev",
        "fdatasync",
        "replace d.tmp d",
        "fsync",
    ]


def test_every_folder_that_is_made_is_synced_into_its_parent(files, tmp_path, monkeypatch):
    calls = Calls(monkeypatch)
    files.make_directory(str(tmp_path / "x" / "y"))
    assert calls.seen[0] == "mkdir x"
    assert calls.seen[2:4] == ["fsync", "mkdir y"]
    assert calls.seen[4:] == ["open x", "fsync"]


def test_a_folder_made_by_another_process_in_between_is_fine(files, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "mkdir", failing(errno.EEXIST))
    files.make_directory(str(tmp_path / "x"))


def test_a_rename_across_folders_syncs_both(files, tmp_path, monkeypatch):
    files.make_directory(str(tmp_path / "x"))
    files.write_atomically(str(tmp_path / "a"), b"")
    calls = Calls(monkeypatch)
    files.rename_durably(str(tmp_path / "a"), str(tmp_path / "x" / "a"))
    assert calls.seen == ["replace a a", "open x", "fsync", f"open {tmp_path.name}", "fsync"]


def test_a_failed_sync_of_a_folder_is_a_failed_disk(files, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(DiskFailedError, match="folder"):
        files.sync_directory(str(tmp_path))


def test_a_failed_rename_keeps_the_old_file(files, tmp_path, monkeypatch):
    path = str(tmp_path / "a")
    files.write_atomically(path, b"old")
    monkeypatch.setattr(os, "replace", failing(errno.EIO))
    with pytest.raises(DiskFailedError, match="rename"):
        files.write_atomically(path, b"new")
    assert files.read_bytes(path) == b"old"


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOSPC, DiskFullError), (errno.EACCES, DiskFailedError)]
)
def test_making_a_file_fails_with_a_typed_error(files, tmp_path, monkeypatch, number, expected):
    monkeypatch.setattr(os, "open", failing(number))
    with pytest.raises(expected, match="cannot open"):
        files.open(str(tmp_path / "a"), create=True)


def test_a_relative_path_works(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.make_directory("d")
    files.write_atomically("a", b"x")
    files.rename_durably("a", "d/a")
    assert files.read_bytes("d/a") == b"x"


def test_whoever_removes_a_file_does_not_wait_until_its_blocks_are_free(tmp_path):
    left = []
    files = OsFiles(close_last=left.append)
    path = str(tmp_path / "a")
    file = files.open(path, create=True)
    file.pwritev([bytes(8192)], 0)
    files.remove(path)
    file.close()
    assert not files.exists(path)
    states = [os.fstat(descriptor) for descriptor in left]
    assert [(state.st_nlink, state.st_size) for state in states] == [(0, 8192)] * 2
    for descriptor in left:
        os.close(descriptor)


def test_a_file_that_keeps_its_name_is_closed_at_once(tmp_path):
    left = []
    files = OsFiles(close_last=left.append)
    file = files.open(str(tmp_path / "a"), create=True)
    descriptor = file.fileno()
    file.close()
    assert left == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_file_is_removed_even_where_no_other_may_be_opened(tmp_path, monkeypatch):
    left = []
    files = OsFiles(close_last=left.append)
    path = str(tmp_path / "a")
    files.open(path, create=True).close()
    monkeypatch.setattr(os, "open", failing(errno.EMFILE))
    files.remove(path)
    assert not files.exists(path)
    assert left == []
