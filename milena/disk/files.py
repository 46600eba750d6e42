"""The only code that touches the operating system's files.

All other code of storage takes a ``Files`` and works on the paths that it gets. Tests replace it with a file system
that crashes, tears writes, fills up, flips bits and fails syncs.

Callers may rely on these rules, and the twin in memory keeps them:

- Bytes written are visible to reads at once; they survive a crash only after ``File.sync``.
- A created, renamed or removed file survives a crash in this state only after ``sync_directory`` of its folder.
  ``write_atomically`` and ``rename_durably`` include this sync.
- ``pwritev`` writes everything or raises; there is no unnoticed short write.
- ``DiskFullError``: no byte of this call counts as written, and the caller continues at the same position.
- ``DiskFailedError``: any other failure of a write or a sync. A failed sync must not be retried.
"""

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file. Positions and sizes are in bytes."""

    @property
    def path(self) -> str:
        """The path with which the file was opened, even if it was renamed or removed since."""

    def fileno(self) -> int:
        """Return the file descriptor; -1 for a file in memory, which has none."""

    def size(self) -> int:
        """Size in bytes, preallocated zeros included."""

    def pread(self, length: int, position: int) -> bytes:
        """Return up to ``length`` bytes; fewer only at the end of the file."""

    def pread_cached(self, length: int, position: int) -> bytes | None:
        """Read as ``pread`` does, but only from the page cache; None if a page is not in it."""

    def pread_once(self, length: int, position: int) -> bytes:
        """Read as ``pread`` does, but leave the page cache as it was, for a reader that reads a file once.

        There is no read-ahead. Pages that were not in the page cache are dropped again. The descriptor must serve no
        other reads.
        """

    def pwritev(self, chunks: Sequence[Buffer], position: int) -> int:
        """Write all chunks one after the other at ``position``; return their total length.

        Raises:
            DiskFullError: no space; no byte of this call counts as written.
            DiskFailedError: any other failure.
        """

    def allocate(self, size: int) -> None:
        """Grow the file to ``size`` bytes of zeros that have disk blocks; never shrink it.

        Raises:
            DiskFullError: no space.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes; durable only after ``sync``."""

    def sync(self) -> None:
        """Make the written bytes durable (fdatasync).

        Raises:
            DiskFailedError: stop the process; never retry.
        """

    def close(self) -> None:
        """Close the file without a sync."""


class Files(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; ``create`` creates a missing file.

        Raises:
            FileNotFoundError: the file is missing and ``create`` is False.
        """

    def exists(self, path: str) -> bool:
        """Whether a file or folder with this name exists."""

    def list_directory(self, path: str) -> list[str]:
        """Return the names in the folder, sorted."""

    def make_directory(self, path: str) -> None:
        """Create the folder and its parents, each synced into its own parent; an existing folder is fine."""

    def remove(self, path: str) -> None:
        """Remove a file; a missing file is fine."""

    def remove_tree(self, path: str) -> None:
        """Remove a folder and everything in it; a missing folder is fine."""

    def rename_durably(self, source: str, target: str) -> None:
        """Rename and sync the folder of ``target``. The caller must have synced the bytes before."""

    def sync_directory(self, path: str) -> None:
        """Fsync the folder, so that the names in it survive."""

    def read_bytes(self, path: str) -> bytes:
        """Return the content of a whole (small) file.

        Raises:
            FileNotFoundError: the file is missing.
        """

    def write_atomically(self, path: str, content: bytes) -> None:
        """Replace a small file durably: write a temporary file, sync it, rename it, sync the folder."""

    def free_bytes(self, path: str) -> int:
        """Return the free space of the file system of ``path``."""

    def total_bytes(self, path: str) -> int:
        """Return the size of the file system of ``path``."""

    def lock(self, path: str) -> "Lock":
        """Take the exclusive lock file at ``path``.

        Raises:
            StartupError: another process holds it.
        """


class Lock(Protocol):
    """A held lock file."""

    def release(self) -> None:
        """Release the lock."""
