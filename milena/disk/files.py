"""The only code that touches the operating system's files.

Everything else in storage takes a ``Files`` and works on the paths that it was given, so that tests can put a
file system in its place that crashes, tears, fills up, flips bits and fails syncs.

What callers may rely on (and an in-memory twin must keep):

- Bytes written are visible to reads at once; they survive a crash only after ``File.sync``.
- A name (create, rename, remove) survives a crash only after ``sync_directory`` of its folder.
  ``write_atomically`` and ``rename_durably`` include it.
- A short write never goes unnoticed: ``pwritev`` writes everything or raises.
- ``DiskFullError``: nothing of this call counts as written (the caller goes on at the same position).
- ``DiskFailedError``: any other failure of a write or a sync. A sync that failed once must not be retried.
"""

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file. Positions and sizes are in bytes."""

    @property
    def path(self) -> str:
        """The path it was opened under."""

    def fileno(self) -> int:
        """The descriptor, for reads that the event loop makes itself; -1 in memory."""

    def size(self) -> int:
        """Size in bytes, preallocated zeros included."""

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes; shorter only at the end of the file."""

    def pread_cached(self, length: int, position: int) -> bytes | None:
        """The same without touching the disk: None when a page is not in the page cache."""

    def pread_once(self, length: int, position: int) -> bytes:
        """``pread`` for who goes through a file once, on a descriptor of its own.

        Nothing is read ahead, and pages that were not in the page cache do not stay there.
        """

    def pwritev(self, chunks: Sequence[Buffer], position: int) -> int:
        """Write all chunks one after the other at ``position``; returns their total length.

        Raises:
            DiskFullError: no space; nothing of this call counts as written.
            DiskFailedError: any other failure.
        """

    def allocate(self, size: int) -> None:
        """Grow the file to ``size`` bytes of zeros backed by disk blocks; never shrinks.

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
        """Close; does not sync."""


class Files(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. ``create``: make it when missing.

        Raises:
            FileNotFoundError: it is missing and ``create`` is False.
        """

    def exists(self, path: str) -> bool:
        """Whether a file or folder of this name is there."""

    def list_directory(self, path: str) -> list[str]:
        """Names in the folder, sorted."""

    def make_directory(self, path: str) -> None:
        """Make the folder and its parents, each synced into its own parent; fine when it exists."""

    def remove(self, path: str) -> None:
        """Remove a file; fine when it is missing."""

    def remove_tree(self, path: str) -> None:
        """Remove a folder and all below it; fine when it is missing."""

    def rename_durably(self, source: str, target: str) -> None:
        """Rename and sync the folder of ``target``. The bytes must have been synced before."""

    def sync_directory(self, path: str) -> None:
        """Fsync the folder, so that the names in it survive."""

    def read_bytes(self, path: str) -> bytes:
        """A whole (small) file.

        Raises:
            FileNotFoundError: it is missing.
        """

    def write_atomically(self, path: str, content: bytes) -> None:
        """Replace a small file: temporary file, sync, rename, directory sync."""

    def free_bytes(self, path: str) -> int:
        """Space left on the file system that holds ``path``."""

    def lock(self, path: str) -> "Lock":
        """Take the exclusive lock file at ``path``.

        Raises:
            StartupError: another process holds it.
        """


class Lock(Protocol):
    """A held lock file."""

    def release(self) -> None:
        """Give it up."""
