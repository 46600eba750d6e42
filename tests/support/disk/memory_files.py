"""A file system in memory that keeps exactly the promises of ``milena.disk.files``.

It has two states: the one that a process sees, and the durable one. ``crash`` mixes both like a power cut: each
unsynced 512-byte sector and each unsynced name may be lost or kept. The file system can also be full (``capacity``),
flip bits, fail writes and syncs, and simulate a crash before the nth operation (``crash_before``). Paths may be
absolute or relative, with ``/`` between names.
"""

import functools
import posixpath
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, NamedTuple

from milena.disk.files import Buffer
from milena.model.errors import CorruptLogError, DiskFailedError, DiskFullError, StartupError

Keep = Literal["none", "some", "all"]

SECTOR_BYTES = 512


class SimulatedCrashError(BaseException):
    """The machine stopped before this operation. It is no ``Exception``, so that tested code does not catch it."""


class FileChange(NamedTuple):
    """One unsynced change of a file, from ``start`` to ``end``: bytes written, or None for a new size.

    ``size`` is the file's size after it.
    """

    start: int
    end: int
    size: int
    content: bytes | None

    def apply(self, content: bytearray) -> None:
        """Apply this change to a file's bytes, with or without the earlier changes."""
        if self.content is None:
            _resize(content, self.size)
            return
        if len(content) < self.start:
            _resize(content, self.start)
        content[self.start : self.end] = self.content


class _Inode:
    """A file's or folder's contents: ``live`` as the process sees it, ``durable`` as the disk has it."""

    def __init__(self, *, is_directory: bool = False) -> None:
        self.is_directory = is_directory
        self.live = bytearray()
        self.durable = bytearray()
        self.changes: list[FileChange] = []
        self.is_cold = False
        self.has_failed = False

    def write(self, content: bytes, position: int) -> None:
        end = position + len(content)
        change = FileChange(position, end, max(end, len(self.live)), content)
        change.apply(self.live)
        self.changes.append(change)

    def resize(self, size: int) -> None:
        before = len(self.live)
        change = FileChange(min(size, before), max(size, before), size, None)
        change.apply(self.live)
        self.changes.append(change)

    def sync(self) -> None:
        _resize(self.durable, len(self.live))
        for change in self.changes:
            kept = slice(change.start, min(change.end, len(self.live)))
            if kept.start < kept.stop:
                self.durable[kept] = self.live[kept]
        self.changes.clear()

    def crash(self, rng: Random, keep: Keep) -> None:
        if keep == "none":
            self.live = bytearray(self.durable)
        elif keep == "some" and self.changes:
            self._tear(rng)
        self.durable = bytearray(self.live)
        self.changes.clear()
        self.is_cold = False
        self.has_failed = False

    def _tear(self, rng: Random) -> None:
        """Take each dirty sector from either state; the size is one of the two sizes, or between them."""
        sizes = (len(self.durable), len(self.live))
        size = rng.choice((*sizes, rng.randint(min(sizes), max(sizes))))
        # Often the first sectors of a write are on the disk and the rest is not; sometimes any mixture.
        is_prefix = rng.random() < 0.5
        sectors = sorted(
            {
                sector
                for change in self.changes
                for sector in range(change.start // SECTOR_BYTES, -(-change.end // SECTOR_BYTES))
            }
        )
        cut = rng.randint(0, len(sectors))
        torn = bytearray(self.durable)
        _resize(torn, size)
        for number, sector in enumerate(sectors):
            if number < cut if is_prefix else rng.random() < 0.5:
                start = sector * SECTOR_BYTES
                end = min(start + SECTOR_BYTES, len(self.live), size)
                if start < end:
                    torn[start:end] = self.live[start:end]
        self.live = torn


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


NameChange = tuple[tuple[str, _Inode | None], ...]
"""Names that change together: one name for a create or remove, two or more for a rename."""


class FilePhoto(NamedTuple):
    """One file at a moment: its durable content, and its unsynced changes."""

    durable: bytes
    changes: tuple[FileChange, ...]


class Photograph(NamedTuple):
    """A whole file system at a moment. Files are numbered; None is a folder.

    ``pending`` has the unsynced changes of names, oldest first. In a change, None is a removed name.
    """

    inodes: tuple[FilePhoto | None, ...]
    names: dict[str, int]
    pending: tuple[tuple[tuple[str, int | None], ...], ...]


class MemoryFiles:
    """An implementation of ``milena.disk.files.Files``.

    Attributes:
        capacity: bytes that all files together may have; None is no limit.
        operations: how often each kind of operation ran: write, sync, rename, create, remove, truncate,
            allocate, sync_directory, make_directory.
        shortages: how often there was no room.
        on_operation: called with kind and path before each of them; what it raises, the caller sees.
    """

    def __init__(self, *, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.operations: Counter[str] = Counter()
        self.shortages = 0
        self.on_operation: Callable[[str, str], None] | None = None
        self._live: dict[str, _Inode] = {}
        self._durable: dict[str, _Inode] = {}
        self._pending: list[NameChange] = []
        self._locks: dict[str, MemoryLock] = {}
        self._boot = 0
        self._crash_at: int | None = None
        self._failures: list[tuple[str, str]] = []

    # Actions of a test.

    def crash(self, rng: Random | None = None, keep: Keep = "none") -> None:
        """Cut the power: unsynced bytes and names are lost ("none"), lost in part ("some") or kept ("all").

        The result is durable. Handles and locks from before are void.
        """
        rng = rng or Random(0)
        if keep == "some":
            self._flush_names(self._pending[: rng.randint(0, len(self._pending))])
        elif keep == "all":
            self._flush_names(self._pending)
        self._pending.clear()
        self._live = dict(self._durable)
        for inode in {id(inode): inode for inode in self._live.values()}.values():
            inode.crash(rng, keep)
        self.kill()

    def kill(self) -> None:
        """Kill the process (kill -9); the machine keeps running.

        All writes stay visible. Unsynced writes are still not durable: a later power cut may remove what the next
        process has already read.
        """
        self._locks.clear()
        self._failures.clear()
        self._crash_at = None
        self._boot += 1

    def crash_before(self, number: int) -> None:
        """Raise ``SimulatedCrashError`` before the ``number``-th operation from now; 0 is the next one."""
        self._crash_at = self.operation_count + number

    @property
    def operation_count(self) -> int:
        """Return the number of operations so far, each of which a crash can precede."""
        return self.operations.total()

    def fail_next_sync(self, path_part: str = "") -> None:
        """Let the next sync of a file whose path contains ``path_part`` fail; its unsynced bytes are lost."""
        self._failures.append(("sync", path_part))

    def fail_next_write(self, path_part: str = "") -> None:
        """Let the next write to such a file fail, for another reason than a full disk."""
        self._failures.append(("write", path_part))

    def fail_next_read(self, path_part: str = "") -> None:
        """Let the next read of such a file fail like a bad sector."""
        self._failures.append(("read", path_part))

    def forget_failures(self) -> None:
        """Cancel all planned failures."""
        self._failures.clear()

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Flip one bit of the byte at ``position``, on the disk and in the page cache."""
        inode = self._inode(path)
        inode.live[position] ^= 1 << bit
        if position < len(inode.durable):
            inode.durable[position] ^= 1 << bit

    def overwrite(self, path: str, position: int, content: bytes) -> None:
        """Replace bytes at ``position``, on the disk and in the page cache."""
        inode = self._inode(path)
        inode.write(content, position)
        inode.sync()

    def photograph(self) -> Photograph:
        """Return everything that determines the possible results of a power cut at this moment."""
        inodes: dict[int, tuple[int, _Inode]] = {}

        def number(inode: _Inode) -> int:
            return inodes.setdefault(id(inode), (len(inodes), inode))[0]

        names = {name: number(inode) for name, inode in self._durable.items()}
        pending = tuple(
            tuple((name, None if inode is None else number(inode)) for name, inode in change)
            for change in self._pending
        )
        photos = (
            None if inode.is_directory else FilePhoto(bytes(inode.durable), tuple(inode.changes))
            for _, inode in inodes.values()
        )
        return Photograph(tuple(photos), names, pending)

    @classmethod
    def developed(cls, photograph: Photograph) -> "MemoryFiles":
        """Return a file system like the photographed one; unsynced changes are still unsynced."""
        files = cls()
        inodes = [_Inode(is_directory=photo is None) for photo in photograph.inodes]
        for inode, photo in zip(inodes, photograph.inodes, strict=True):
            if photo is not None:
                inode.durable[:] = photo.durable
                inode.live[:] = photo.durable
                inode.changes[:] = photo.changes
                for change in photo.changes:
                    change.apply(inode.live)
        files._durable = {name: inodes[number] for name, number in photograph.names.items()}
        files._live = dict(files._durable)
        for renamed in photograph.pending:
            files._change_names(
                *((name, None if number is None else inodes[number]) for name, number in renamed)
            )
        return files

    def evict(self, path: str) -> None:
        """Drop a file from the page cache: ``pread_cached`` returns None until the next ``pread``."""
        self._inode(path).is_cold = True

    def paths(self) -> list[str]:
        """Return the paths of all files, sorted."""
        return sorted(path for path, inode in self._live.items() if not inode.is_directory)

    # Methods of ``Files``, for the tested code.

    def open(self, path: str, *, create: bool = False) -> "MemoryFile":
        """Open for reading and writing."""
        path = _normal(path)
        inode = self._live.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(path)
            self._require_parent(path)
            self.note("create", path)
            inode = _Inode()
            self._change_names((path, inode))
        elif inode.is_directory:
            raise DiskFailedError(f"cannot open {path}: it is a folder")
        return MemoryFile(self, path, inode, self._boot)

    def exists(self, path: str) -> bool:
        """Return whether a file or folder has this path."""
        path = _normal(path)
        return _is_root(path) or path in self._live

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        path = _normal(path)
        if not self.exists(path):
            raise FileNotFoundError(path)
        return sorted(
            posixpath.basename(name)
            for name in self._live
            if _parent(name) == path and name != path
        )

    def make_directory(self, path: str) -> None:
        """Create a folder and its parents, durably."""
        path = _normal(path)
        if self.exists(path):
            return
        self.make_directory(_parent(path))
        self.note("make_directory", path)
        self._change_names((path, _Inode(is_directory=True)))
        self.sync_directory(_parent(path))

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        path = _normal(path)
        if path in self._live:
            self.note("remove", path)
            self._change_names((path, None))

    def remove_tree(self, path: str) -> None:
        """Remove a folder and everything below it, if it exists."""
        path = _normal(path)
        below = [name for name in self._live if name == path or name.startswith(path + "/")]
        for name in sorted(below, reverse=True):
            self.note("remove", name)
            self._change_names((name, None))

    def rename_durably(self, source: str, target: str) -> None:
        """Rename, and sync the folders; unsynced names in a renamed folder move with it and stay unsynced."""
        source, target = _normal(source), _normal(target)
        if source not in self._live:
            raise FileNotFoundError(source)
        self._require_parent(target)
        self.note("rename", source)
        moved = [
            (target + name[len(source) :], inode)
            for name, inode in self._live.items()
            if name == source or name.startswith(source + "/")
        ]
        if self._live[source].is_directory and self.exists(target):
            raise DiskFailedError(f"cannot rename {source}: {target} exists")
        self._change_names((source, None), *moved)
        for folder in dict.fromkeys((_parent(target), _parent(source))):
            self.sync_directory(folder)

    def sync_directory(self, path: str) -> None:
        """Make the names in the folder durable."""
        path = _normal(path)
        if not self.exists(path):
            raise FileNotFoundError(path)
        self.note("sync_directory", path)
        self._maybe_fail("sync", path)
        self._flush_names(
            [change for change in self._pending if any(_parent(name) == path for name, _ in change)]
        )

    def read_bytes(self, path: str) -> bytes:
        """Return the content of a file."""
        file = self.open(path)
        return file.pread(file.size(), 0)

    def write_atomically(self, path: str, content: bytes) -> None:
        """Replace a small file."""
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.pwritev([content], 0)
            file.sync()
        except DiskFullError:
            self.remove(temporary)
            raise
        self.rename_durably(temporary, path)

    def free_bytes(self, path: str) -> int:
        """Return the free space in bytes."""
        return (1 << 40) if self.capacity is None else max(self.capacity - self.used_bytes(), 0)

    def total_bytes(self, path: str) -> int:
        """Return the size of the disk in bytes."""
        return (1 << 40) if self.capacity is None else self.capacity

    def used_bytes(self) -> int:
        """Return the size of all files together."""
        return sum(len(inode.live) for inode in self._live.values())

    def lock(self, path: str) -> "MemoryLock":
        """Take the exclusive lock file at ``path``."""
        path = _normal(path)
        if path in self._locks:
            raise StartupError(f"{path} is locked: another process uses this data directory")
        self.open(path, create=True)
        self._locks[path] = MemoryLock(self._locks, path)
        return self._locks[path]

    # Methods for ``MemoryFile``.

    def note(self, kind: str, path: str) -> None:
        """Count an operation that is about to happen; a planned crash is raised here."""
        if self._crash_at is not None and self.operation_count >= self._crash_at:
            raise SimulatedCrashError(f"before {kind} of {path}")
        if self.on_operation is not None:
            self.on_operation(kind, path)
        self.operations[kind] += 1

    def require_room(self, path: str, growth: int) -> None:
        """Raise DiskFullError if the files may not grow by ``growth`` bytes."""
        if growth > 0 and self.capacity is not None and self.used_bytes() + growth > self.capacity:
            self.shortages += 1
            raise DiskFullError(f"cannot write to {path}: No space left on device")

    def require_boot(self, path: str, boot: int) -> None:
        """Check that the handle was opened after the last crash or kill."""
        assert boot == self._boot, f"{path} was opened before the crash"

    def maybe_fail(self, kind: str, path: str) -> bool:
        """Return whether the test planned a failure of this operation."""
        for failure in self._failures:
            if failure[0] == kind and failure[1] in path:
                self._failures.remove(failure)
                return True
        return False

    def _maybe_fail(self, kind: str, path: str) -> None:
        if self.maybe_fail(kind, path):
            raise DiskFailedError(f"cannot {kind} {path}: Input/output error")

    def _inode(self, path: str) -> _Inode:
        return self._live[_normal(path)]

    def _require_parent(self, path: str) -> None:
        parent = _parent(path)
        if not self.exists(parent):
            raise FileNotFoundError(parent)

    def _change_names(self, *change: tuple[str, _Inode | None]) -> None:
        self._pending.append(change)
        _apply_names(self._live, change)

    def _flush_names(self, changes: Sequence[NameChange]) -> None:
        chosen = {id(change) for change in changes}
        for change in changes:
            _apply_names(self._durable, change)
        self._pending = [change for change in self._pending if id(change) not in chosen]


def _apply_names(names: dict[str, _Inode], change: NameChange) -> None:
    for name, inode in change:
        if inode is not None:
            names[name] = inode
        elif names.pop(name, _Inode()).is_directory:
            # A removed folder also loses its content, whatever the order of syncs.
            for below in [other for other in names if other.startswith(name + "/")]:
                del names[below]


@functools.lru_cache(maxsize=10_000)
def _normal(path: str) -> str:
    return posixpath.normpath(path)


@functools.lru_cache(maxsize=10_000)
def _parent(path: str) -> str:
    return _normal(posixpath.dirname(path))


def _is_root(path: str) -> bool:
    return path in ("/", ".")


class MemoryFile:
    """An open file. All handles of a file see each other's writes."""

    def __init__(self, files: MemoryFiles, path: str, inode: _Inode, boot: int) -> None:
        self._files = files
        self._path = path
        self._inode = inode
        self._boot = boot
        self.is_closed = False

    @property
    def path(self) -> str:
        """Return the path that the file was opened with."""
        return self._path

    def fileno(self) -> int:
        """Return -1: a memory file has no descriptor."""
        return -1

    def size(self) -> int:
        """Return the size in bytes."""
        self._require_open()
        return len(self._inode.live)

    def pread(self, length: int, position: int) -> bytes:
        """Return up to ``length`` bytes."""
        self._require_open()
        if self._files.maybe_fail("read", self._path):
            raise CorruptLogError(f"cannot read {self._path}: Input/output error")
        self._inode.is_cold = False
        return bytes(self._inode.live[position : position + length])

    def pread_cached(self, length: int, position: int) -> bytes | None:
        """Return the same as ``pread``, or None after ``evict``."""
        self._require_open()
        if self._inode.is_cold:
            return None
        return bytes(self._inode.live[position : position + length])

    def pread_once(self, length: int, position: int) -> bytes:
        """Return the same as ``pread``, without a change of the page cache."""
        was_cold = self._inode.is_cold
        content = self.pread(length, position)
        self._inode.is_cold = was_cold
        return content

    def pwritev(self, chunks: Sequence[Buffer], position: int) -> int:
        """Write all chunks."""
        self._require_open()
        self._files.note("write", self._path)
        content = b"".join(chunks)
        if self._files.maybe_fail("write", self._path):
            raise DiskFailedError(f"cannot write to {self._path}: Input/output error")
        growth = position + len(content) - len(self._inode.live)
        if content:
            self._files.require_room(self._path, growth)
            self._inode.write(content, position)
        return len(content)

    def allocate(self, size: int) -> None:
        """Extend the file with zeros."""
        self._require_open()
        growth = size - len(self._inode.live)
        if growth > 0:
            self._files.note("allocate", self._path)
            self._files.require_room(self._path, growth)
            self._inode.resize(size)

    def truncate(self, size: int) -> None:
        """Shorten the file."""
        self._require_open()
        self._files.note("truncate", self._path)
        self._inode.resize(size)

    def sync(self) -> None:
        """Make the written bytes durable."""
        self._require_open()
        self._files.note("sync", self._path)
        if self._inode.has_failed:
            raise DiskFailedError(f"an earlier sync of {self._path} failed")
        if self._files.maybe_fail("sync", self._path):
            self._inode.has_failed = True
            raise DiskFailedError(f"cannot sync {self._path}: Input/output error")
        self._inode.sync()

    def close(self) -> None:
        """Close the file; closing again does nothing."""
        self.is_closed = True

    def _require_open(self) -> None:
        self._files.require_boot(self._path, self._boot)
        assert not self.is_closed, f"{self._path} is closed"


class MemoryLock:
    """A held lock file."""

    def __init__(self, locks: dict[str, "MemoryLock"], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        """Release the lock; releasing again does nothing."""
        if self._locks.get(self._path) is self:
            del self._locks[self._path]
