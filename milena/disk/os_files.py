"""``milena.disk.files.Files`` on the operating system: Linux, file descriptors, no buffering in the process.

Only this module looks at error numbers of the operating system:

    ENOSPC, EDQUOT          DiskFullError, after the bytes that the call wrote past the old end were cut off
    EIO on a read           CorruptLogError: these bytes of the disk are lost, others may be readable
    FileNotFoundError       unchanged
    any other error         DiskFailedError

A file whose sync failed once refuses every later sync. After a failed sync, the kernel marks the lost pages as clean. A
second fsync would then report success although the bytes are not on the disk (PostgreSQL's "fsyncgate").
"""

import contextlib
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence

from milena.disk.cached_reads import PIECE_BYTES, read_cached
from milena.disk.files import Buffer
from milena.disk.last_closes import LastCloses
from milena.model.errors import CorruptLogError, DiskFailedError, DiskFullError, StartupError

# Limit of chunks in one call (UIO_MAXIOV).
_IOV_MAX = 1024

# If the file system cannot preallocate, zeros are written in pieces of this size.
_ZEROS = bytes(1 << 20)

# After a read of at least this size, the kernel is asked to read as much again, because a reader of an old log
# continues there. The kernel's own read-ahead is off (``OsFiles.open``), because its size depends on the machine. With
# 8 MB of read-ahead, every sync of the machine waited 5 to 7 ms for it, twenty times a second while a replica caught
# up.
_AHEAD_BYTES_MIN = 64 << 10

# ``pread_once`` looks for cached pages, and drops pages that were not cached, in pieces of this size.
_COLD_BYTES = 16 << 10

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_CANNOT_ALLOCATE = frozenset((errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS))

_FILE_MODE = 0o640
_DIRECTORY_MODE = 0o750


class _Probe(threading.local):
    """A buffer per thread, into which pages are read only to find out whether they are cached."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_COLD_BYTES))


_probe = _Probe()
_last_closes = LastCloses(os.close)


@contextlib.contextmanager
def _typed_errors(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _typed(action, path, error) from error


def _typed(action: str, path: str, error: OSError) -> DiskFullError | DiskFailedError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return DiskFullError(f"cannot {action} {path}: {reason}")
    return DiskFailedError(f"cannot {action} {path}: {reason}", errno=error.errno)


class OsFile:
    """An open descriptor. One thread writes; others may read and sync at the same time."""

    def __init__(
        self, path: str, descriptor: int, *, close_last: Callable[[int], None] = os.close
    ) -> None:
        """Take an open descriptor; ``close_last`` closes it if the file was removed, possibly on another thread."""
        self._path = path
        self._descriptor = descriptor
        self._close_last = close_last
        self._has_failed = False
        self._known_size = -1
        """Size after the last change by this object; -1: not known. The size stays right: a file has one writer."""

    @property
    def path(self) -> str:
        """The path under which it was opened."""
        return self._path

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def size(self) -> int:
        """Size in bytes, preallocated zeros included."""
        return os.fstat(self._descriptor).st_size

    def pread(self, length: int, position: int) -> bytes:
        """Return up to ``length`` bytes; fewer only at the end of the file. A large read causes read-ahead.

        Raises:
            CorruptLogError: the disk cannot read these bytes.
        """
        return self._pread(length, position, is_ahead=True)

    def _pread(self, length: int, position: int, *, is_ahead: bool) -> bytes:
        parts: list[bytes] = []
        end = position + length
        try:
            while position < end:
                part = os.pread(self._descriptor, min(end - position, PIECE_BYTES), position)
                if not part:
                    break
                parts.append(part)
                position += len(part)
                if is_ahead and len(part) >= _AHEAD_BYTES_MIN:
                    _advise(self._descriptor, position, len(part), os.POSIX_FADV_WILLNEED)
        except OSError as error:
            raise CorruptLogError(
                f"cannot read {end - position} bytes at {position} of {self._path}: {error.strerror}"
            ) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pread_cached(self, length: int, position: int) -> bytes | None:
        """Read as ``pread`` does, but only from the page cache; None if a page may not be in it."""
        return read_cached(self._descriptor, length, position)

    def pread_once(self, length: int, position: int) -> bytes:
        """Read as ``pread`` does, but leave the page cache unchanged; the descriptor must serve no other reads.

        Raises:
            CorruptLogError: the disk cannot read these bytes.
        """
        cold = self._cold_ranges(length, position)
        content = self._pread(length, position, is_ahead=False)
        for start, end in cold:
            _advise(self._descriptor, start, end - start, os.POSIX_FADV_DONTNEED)
        return content

    def _cold_ranges(self, length: int, position: int) -> list[tuple[int, int]]:
        """Return the ranges of whole pages that are not in the page cache."""
        ranges: list[tuple[int, int]] = []
        end = min(position + length, self.size())
        for start in range(position - position % _COLD_BYTES, end, _COLD_BYTES):
            wanted = min(start + _COLD_BYTES, end) - start
            try:
                view = _probe.view[:wanted]
                if os.preadv(self._descriptor, (view,), start, os.RWF_NOWAIT) == wanted:
                    continue
            except OSError:
                pass  # EAGAIN: a page is not cached. EOPNOTSUPP: this file system cannot tell.
            first = ranges.pop()[0] if ranges and ranges[-1][1] == start else start
            ranges.append((first, start + _COLD_BYTES))
        return ranges

    def pwritev(self, chunks: Sequence[Buffer], position: int) -> int:
        """Write all chunks at ``position``; return their total length.

        Raises:
            DiskFullError: nothing of this call counts as written; the file has its old size.
            DiskFailedError: any other failure.
        """
        size_before = self._known_size
        if size_before < 0:
            # Read the size once and not for every write. If this write fails, the file is cut back to this size.
            size_before = self._known_size = self.size()
        total = sum(map(len, chunks))
        try:
            written = os.pwritev(self._descriptor, chunks[:_IOV_MAX], position)
            if written != total:
                self._write_rest(chunks, position, written)
        except OSError as error:
            self._known_size = -1
            failure = _typed("write to", self._path, error)
            if isinstance(failure, DiskFullError):
                self._take_back(size_before)
            raise failure from error
        self._known_size = max(size_before, position + total)
        return total

    def _write_rest(self, chunks: Sequence[Buffer], position: int, written: int) -> None:
        """Continue after a short write, or after the first ``_IOV_MAX`` chunks."""
        left = _views_after(chunks, written)
        at = position + written
        while left:
            count = os.pwritev(self._descriptor, left[:_IOV_MAX], at)
            if count == 0:
                raise OSError(errno.EIO, "the write made no progress")
            at += count
            left = _views_after(left, count)

    def _take_back(self, size_before: int) -> None:
        with _typed_errors("cut", self._path):
            if self.size() > size_before:
                os.ftruncate(self._descriptor, size_before)

    def allocate(self, size: int) -> None:
        """Grow the file to ``size`` bytes of zeros that have disk blocks; never shrink it.

        Raises:
            DiskFullError: no space; the file has its old size.
        """
        size_before = self.size()
        if size <= size_before:
            return
        self._known_size = -1
        try:
            os.posix_fallocate(self._descriptor, size_before, size - size_before)
        except OSError as error:
            if error.errno in _CANNOT_ALLOCATE:
                self._write_zeros(size_before, size)
                return
            failure = _typed("allocate", self._path, error)
            if isinstance(failure, DiskFullError):
                self._take_back(size_before)
            raise failure from error

    def _write_zeros(self, start: int, end: int) -> None:
        zeros = memoryview(_ZEROS)
        whole, rest = divmod(end - start, len(_ZEROS))
        self.pwritev([*[zeros] * whole, zeros[:rest]], start)

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes; durable only after ``sync``."""
        self._known_size = -1
        with _typed_errors("cut", self._path):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Make the written bytes and the size durable.

        Raises:
            DiskFailedError: the sync failed, or an earlier one did.
        """
        if self._has_failed:
            raise DiskFailedError(f"an earlier sync of {self._path} failed")
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._has_failed = True
            # This holds for a full disk too: bytes that the page cache had accepted are lost.
            raise DiskFailedError(f"cannot sync {self._path}: {error.strerror}") from error

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            has_name = os.fstat(descriptor).st_nlink > 0
            (os.close if has_name else self._close_last)(descriptor)


def _advise(descriptor: int, start: int, length: int, advice: int) -> None:
    """Give the kernel a hint on how bytes will be used; ignore a kernel that refuses the hint."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, start, length, advice)


def _hold(path: str) -> int:
    """Open a descriptor that keeps the file's blocks when its name is removed; -1 at the descriptor limit.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    try:
        return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError:
        return -1


def _views_after(chunks: Sequence[Buffer], skip: int) -> list[memoryview]:
    views: list[memoryview] = []
    for chunk in chunks:
        if skip >= len(chunk):
            skip -= len(chunk)
        else:
            views.append(memoryview(chunk)[skip:])
            skip = 0
    return views


class OsLock:
    """A lock file held by ``flock``: the kernel releases the lock when the process ends, even by a crash."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class OsFiles:
    """The file system that the process runs on. Any thread may use it."""

    def __init__(self, *, close_last: Callable[[int], None] = _last_closes.close) -> None:
        """Take ``close_last``, which closes descriptors of removed files, possibly on another thread."""
        self._close_last = close_last

    def open(self, path: str, *, create: bool = False) -> OsFile:
        """Open for reading and writing; ``create`` creates a missing file, whose name is not durable yet.

        The kernel's read-ahead is off; ``OsFile.pread`` asks for it.

        Raises:
            FileNotFoundError: the file is missing and ``create`` is False.
            DiskFullError: no room for another file.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        with _typed_errors("open", path):
            descriptor = os.open(path, flags, _FILE_MODE)
        _advise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return OsFile(path, descriptor, close_last=self._close_last)

    def exists(self, path: str) -> bool:
        """Whether a file or folder with this name exists."""
        return os.path.exists(path)

    def list_directory(self, path: str) -> list[str]:
        """Return the names in the folder, sorted."""
        with _typed_errors("list", path):
            return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        """Create the folder and its parents, each synced into its own parent; an existing folder is fine."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.make_directory(parent)
        with _typed_errors("make the folder", path), contextlib.suppress(FileExistsError):
            os.mkdir(path, _DIRECTORY_MODE)
        self.sync_directory(parent)

    def remove(self, path: str) -> None:
        """Remove a file; a missing file is fine. Its name is removed at once, its blocks are freed soon after."""
        with _typed_errors("remove", path), contextlib.suppress(FileNotFoundError):
            descriptor = _hold(path)
            try:
                os.unlink(path)
            finally:
                if descriptor >= 0:
                    self._close_last(descriptor)

    def remove_tree(self, path: str) -> None:
        """Remove a folder and everything in it; a missing folder is fine."""
        with _typed_errors("remove", path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def rename_durably(self, source: str, target: str) -> None:
        """Rename, replacing ``target``, and sync the folders of both names."""
        with _typed_errors("rename", source):
            os.replace(source, target)
        folders = dict.fromkeys((os.path.dirname(target), os.path.dirname(source)))
        for folder in folders:
            self.sync_directory(folder)

    def sync_directory(self, path: str) -> None:
        """Fsync the folder, so that the names in it survive.

        Raises:
            DiskFailedError: stop the process.
        """
        with _typed_errors("open the folder", path):
            descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise DiskFailedError(f"cannot sync the folder {path}: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def read_bytes(self, path: str) -> bytes:
        """Return the content of a whole (small) file.

        Raises:
            FileNotFoundError: the file is missing.
            CorruptLogError: the disk cannot read the file.
        """
        file = self.open(path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def write_atomically(self, path: str, content: bytes) -> None:
        """Replace a small file: temporary file, sync, rename, directory sync.

        Raises:
            DiskFullError: no space; the old file is unchanged.
        """
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.pwritev([content], 0)
            file.sync()
        except DiskFullError:
            self.remove(temporary)
            raise
        finally:
            file.close()
        self.rename_durably(temporary, path)

    def free_bytes(self, path: str) -> int:
        """Return the space that this process may still use on the file system of ``path``."""
        with _typed_errors("ask for the space left at", path):
            state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def total_bytes(self, path: str) -> int:
        """Return the size of the file system of ``path``, without the blocks that are reserved for root."""
        with _typed_errors("ask for the size of the file system of", path):
            state = os.statvfs(path)
        return (state.f_blocks - state.f_bfree + state.f_bavail) * state.f_frsize

    def lock(self, path: str) -> OsLock:
        """Take the exclusive lock file at ``path``.

        Raises:
            StartupError: another process holds it.
        """
        with _typed_errors("open", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise StartupError(
                f"{path} is locked: another process uses this data directory"
            ) from error
        return OsLock(descriptor)
