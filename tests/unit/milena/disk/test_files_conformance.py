"""What every implementation of ``milena.disk.files`` must do: the real one and its twin in memory alike."""

import inspect
import os

import pytest

from milena.disk.files import File, Files, Lock
from milena.disk.os_files import OsFiles
from milena.model.errors import DiskFailedError, DiskFullError, StartupError
from tests.support.disk.memory_files import MemoryFiles


@pytest.fixture(params=["os", "memory"])
def files(request):
    return OsFiles() if request.param == "os" else MemoryFiles()


@pytest.fixture
def root(files, tmp_path):
    path = str(tmp_path / "data")
    files.make_directory(path)
    return path


def test_signatures_are_those_of_the_protocol(files, root):
    file = files.open(f"{root}/a", create=True)
    lock = files.lock(f"{root}/lock")
    for protocol, value in ((Files, files), (File, file), (Lock, lock)):
        for name, method in vars(protocol).items():
            if callable(method) and not name.startswith("_"):
                expected = list(inspect.signature(method).parameters.values())[1:]
                actual = list(inspect.signature(getattr(value, name)).parameters.values())
                assert [(p.name, p.kind, p.default) for p in actual] == [
                    (p.name, p.kind, p.default) for p in expected
                ], name
    file.close()
    lock.release()


def test_open_refuses_a_missing_file(files, root):
    with pytest.raises(FileNotFoundError):
        files.open(f"{root}/missing")


def test_open_creates_when_asked_and_keeps_what_is_there(files, root):
    file = files.open(f"{root}/a", create=True)
    file.pwritev([b"kept"], 0)
    file.close()
    again = files.open(f"{root}/a", create=True)
    assert again.pread(10, 0) == b"kept"
    assert again.path == f"{root}/a"
    again.close()


def test_create_needs_the_folder(files, root):
    with pytest.raises(FileNotFoundError):
        files.open(f"{root}/missing/a", create=True)


def test_pwritev_writes_all_chunks_in_order(files, root):
    file = files.open(f"{root}/a", create=True)
    assert file.pwritev([b"one", bytearray(b"two"), memoryview(b"-three")[1:]], 0) == 11
    assert file.pread(100, 0) == b"onetwothree"
    file.close()


def test_pwritev_takes_more_chunks_than_one_system_call(files, root):
    file = files.open(f"{root}/a", create=True)
    chunks = [bytes([number % 251]) * (number % 5) for number in range(5000)]
    assert file.pwritev(chunks, 3) == sum(map(len, chunks))
    assert file.pread(100_000, 0) == bytes(3) + b"".join(chunks)
    file.close()


def test_pwritev_of_nothing_changes_nothing(files, root):
    file = files.open(f"{root}/a", create=True)
    assert file.pwritev([], 100) == 0
    assert file.pwritev([b"", b""], 100) == 0
    assert file.size() == 0
    file.close()


def test_pwritev_beyond_the_end_leaves_zeros_between(files, root):
    file = files.open(f"{root}/a", create=True)
    file.pwritev([b"x"], 5)
    assert file.pread(10, 0) == b"\0\0\0\0\0x"
    file.close()


def test_pread_is_short_only_at_the_end(files, root):
    file = files.open(f"{root}/a", create=True)
    file.pwritev([b"0123456789"], 0)
    assert file.pread(4, 3) == b"3456"
    assert file.pread(4, 8) == b"89"
    assert file.pread(4, 10) == b""
    assert file.pread(4, 99) == b""
    assert file.pread(0, 2) == b""
    file.close()


def test_pread_cached_agrees_with_pread_or_declines(files, root):
    file = files.open(f"{root}/a", create=True)
    file.pwritev([os.urandom(3 << 20)], 0)
    for length, position in (
        (10, 0),
        (2 << 20, 5),
        (4 << 20, 0),
        (10, (3 << 20) - 4),
        (10, 9 << 20),
    ):
        cached = file.pread_cached(length, position)
        assert cached is None or cached == file.pread(length, position)
    file.close()


def test_every_handle_sees_what_any_of_them_wrote(files, root):
    one = files.open(f"{root}/a", create=True)
    two = files.open(f"{root}/a")
    one.pwritev([b"shared"], 0)
    assert two.pread(10, 0) == b"shared"
    one.close()
    two.close()


def test_allocate_grows_by_zeros_and_never_shrinks(files, root):
    file = files.open(f"{root}/a", create=True)
    file.pwritev([b"head"], 0)
    file.allocate(8192)
    assert file.size() == 8192
    assert file.pread(8192, 0) == b"head" + bytes(8188)
    file.allocate(100)
    assert file.size() == 8192
    file.close()


def test_truncate_cuts_and_what_grows_back_is_zeros(files, root):
    file = files.open(f"{root}/a", create=True)
    file.pwritev([b"0123456789"], 0)
    file.truncate(4)
    assert file.pread(10, 0) == b"0123"
    file.allocate(10)
    assert file.pread(10, 0) == b"0123" + bytes(6)
    file.sync()
    file.close()


def test_close_twice_is_fine(files, root):
    file = files.open(f"{root}/a", create=True)
    file.close()
    file.close()


def test_make_directory_makes_parents_and_is_fine_twice(files, root):
    files.make_directory(f"{root}/a/b/c")
    files.make_directory(f"{root}/a/b/c")
    assert files.list_directory(f"{root}/a") == ["b"]
    assert files.exists(f"{root}/a/b/c")


def test_list_directory_is_sorted_and_one_level_deep(files, root):
    for name in ("b", "a", "c"):
        files.open(f"{root}/{name}", create=True).close()
    files.make_directory(f"{root}/d")
    files.open(f"{root}/d/deep", create=True).close()
    assert files.list_directory(root) == ["a", "b", "c", "d"]


def test_list_directory_refuses_a_missing_folder(files, root):
    with pytest.raises(FileNotFoundError):
        files.list_directory(f"{root}/missing")


def test_remove_is_fine_when_there_is_nothing(files, root):
    files.open(f"{root}/a", create=True).close()
    files.remove(f"{root}/a")
    files.remove(f"{root}/a")
    assert not files.exists(f"{root}/a")


def test_a_removed_file_is_readable_through_open_handles(files, root):
    file = files.open(f"{root}/a", create=True)
    file.pwritev([b"still"], 0)
    files.remove(f"{root}/a")
    assert file.pread(10, 0) == b"still"
    file.close()


def test_remove_tree_takes_all_below_and_nothing_beside(files, root):
    files.make_directory(f"{root}/a/b")
    files.make_directory(f"{root}/ab")
    files.open(f"{root}/a/b/x", create=True).close()
    files.remove_tree(f"{root}/a")
    files.remove_tree(f"{root}/a")
    assert files.list_directory(root) == ["ab"]


def test_rename_durably_replaces_the_target(files, root):
    files.write_atomically(f"{root}/a", b"new")
    files.write_atomically(f"{root}/b", b"old")
    files.rename_durably(f"{root}/a", f"{root}/b")
    assert files.list_directory(root) == ["b"]
    assert files.read_bytes(f"{root}/b") == b"new"


def test_rename_durably_works_across_folders(files, root):
    files.make_directory(f"{root}/d")
    files.write_atomically(f"{root}/a", b"moved")
    files.rename_durably(f"{root}/a", f"{root}/d/b")
    assert files.read_bytes(f"{root}/d/b") == b"moved"
    with pytest.raises(FileNotFoundError):
        files.rename_durably(f"{root}/a", f"{root}/d/b")


def test_a_file_renamed_to_itself_stays(files, root):
    files.write_atomically(f"{root}/a", b"x")
    files.rename_durably(f"{root}/a", f"{root}/a")
    assert files.read_bytes(f"{root}/a") == b"x"


def test_a_renamed_folder_takes_what_is_in_it_along(files, root):
    files.make_directory(f"{root}/old/deep")
    files.write_atomically(f"{root}/old/deep/a", b"x")
    files.rename_durably(f"{root}/old", f"{root}/new")
    assert files.list_directory(root) == ["new"]
    assert files.read_bytes(f"{root}/new/deep/a") == b"x"


def test_a_folder_is_not_renamed_over_another(files, root):
    files.make_directory(f"{root}/old")
    files.make_directory(f"{root}/new")
    files.write_atomically(f"{root}/new/a", b"x")
    with pytest.raises(DiskFailedError):
        files.rename_durably(f"{root}/old", f"{root}/new")
    assert files.list_directory(root) == ["new", "old"]


def test_read_bytes_refuses_a_missing_file(files, root):
    with pytest.raises(FileNotFoundError):
        files.read_bytes(f"{root}/missing")


def test_write_atomically_replaces_longer_by_shorter_and_leaves_no_temporary(files, root):
    files.write_atomically(f"{root}/a", b"a longer content")
    files.write_atomically(f"{root}/a", b"short")
    assert files.read_bytes(f"{root}/a") == b"short"
    assert files.list_directory(root) == ["a"]


def test_sync_directory_refuses_a_missing_folder(files, root):
    files.sync_directory(root)
    with pytest.raises(FileNotFoundError):
        files.sync_directory(f"{root}/missing")


def test_a_file_system_has_a_size_of_which_some_is_free(files, root):
    assert 0 < files.free_bytes(str(root)) <= files.total_bytes(str(root))


def test_free_bytes_is_a_number(files, root):
    assert files.free_bytes(root) > 0


def test_opening_a_folder_as_a_file_fails_with_a_typed_error(files, root):
    with pytest.raises(DiskFailedError, match="data"):
        files.open(root)


def test_lock_is_exclusive_until_released(files, root):
    lock = files.lock(f"{root}/lock")
    with pytest.raises(StartupError, match="lock"):
        files.lock(f"{root}/lock")
    lock.release()
    lock.release()
    again = files.lock(f"{root}/lock")
    again.release()


class TestFullDisk:
    """The memory twin against a capacity, the real one against a limit on the size of files."""

    @pytest.fixture
    def limited(self, files, root, monkeypatch):
        if isinstance(files, MemoryFiles):
            files.capacity = 100_000
            return files
        fill_up(monkeypatch, 100_000)
        return files

    def test_a_write_that_does_not_fit_is_refused_and_leaves_the_file_as_it_was(
        self, limited, root
    ):
        file = limited.open(f"{root}/a", create=True)
        file.pwritev([b"head"], 0)
        with pytest.raises(DiskFullError):
            file.pwritev([b"x" * 60_000, b"y" * 60_000], 4)
        assert file.size() == 4
        assert file.pread(10, 0) == b"head"
        assert file.pwritev([b"fits"], 4) == 4
        assert file.pread(10, 0) == b"headfits"
        file.close()

    def test_allocation_that_does_not_fit_is_refused_and_leaves_the_file_as_it_was(
        self, limited, root
    ):
        file = limited.open(f"{root}/a", create=True)
        file.pwritev([b"head"], 0)
        with pytest.raises(DiskFullError):
            file.allocate(200_000)
        assert file.size() == 4
        file.close()

    def test_allocated_room_can_be_written(self, limited, root):
        file = limited.open(f"{root}/a", create=True)
        file.allocate(100_000)
        file.pwritev([b"z" * 100_000], 0)
        file.sync()
        file.close()

    def test_an_atomic_write_that_does_not_fit_keeps_the_old_file(self, limited, root):
        limited.write_atomically(f"{root}/a", b"old")
        with pytest.raises(DiskFullError):
            limited.write_atomically(f"{root}/a", b"n" * 200_000)
        assert limited.read_bytes(f"{root}/a") == b"old"
        assert limited.list_directory(root) == ["a"]


def fill_up(monkeypatch, size_max):
    """Make the system's calls behave as on a disk where no file can grow beyond ``size_max``."""
    real_pwritev, real_fallocate = os.pwritev, os.posix_fallocate

    def pwritev(descriptor, chunks, position):
        content = b"".join(chunks)[: max(size_max - position, 0)]
        if not content:
            raise OSError(28, "No space left on device")
        return real_pwritev(descriptor, [content], position)

    def fallocate(descriptor, position, length):
        if position + length > size_max:
            # What ext4 does: it keeps the blocks that it did find.
            real_fallocate(descriptor, position, size_max - position)
            raise OSError(28, "No space left on device")
        real_fallocate(descriptor, position, length)

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "posix_fallocate", fallocate)
