"""The disks of nodes, and ways to damage them; the three kinds of disks have the same methods.

Mounts are made in a separate mount namespace (``enter_mount_namespace``), so nothing stays mounted after the run,
whatever ends it.
"""

import ctypes
import fcntl
import os
import random
import shutil
import struct
import subprocess
import time
from pathlib import Path

from tests.chaos.setup import DiskKind

FS_IOC_SHUTDOWN = 0x8004587D
"""The ioctl of ext4 and xfs that stops a file system at once."""
NO_LOG_FLUSH = 2
"""The flag with which the ioctl loses all unsynced data, like a power cut."""
CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE, MS_SHARED = 0x4000, 0x40000, 0x100000
UNMOUNT_ATTEMPTS = 50
MEGABYTE = 1 << 20
TORN_BYTES_LOG2_MAX = 12
"""The base-2 logarithm of the most bytes that a torn tail loses: 4 KiB."""
FLIP_WITHIN_BYTES = 65536
"""The distance from the end within which a bit is flipped: a crash damages recent data."""
SEGMENTS = "**/*.log"


class DiskError(Exception):
    """This kind of disk cannot do the requested operation."""


class Disk:
    """A plain directory; the other kinds mount a file system on it. ``data`` is the node's directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"
        root.mkdir(parents=True)
        self._prepare()
        self.data.mkdir()
        sync_directory(root)

    def _prepare(self) -> None:
        """Mount the file system, before the first start."""

    def fill(self) -> None:
        """Use up all free space."""
        raise DiskError(f"{self.root} is not a small disk")

    def free(self) -> None:
        """Free the space that ``fill`` used."""

    def cut_power(self) -> None:
        """Stop the file system; unsynced data are lost."""
        raise DiskError(f"{self.root} cannot lose its power")

    def restore_power(self) -> None:
        """Mount the file system again; its journal is replayed."""

    def close(self) -> None:
        """Unmount the file system."""

    @property
    def can_lose_power(self) -> bool:
        """Return whether ``cut_power`` is possible."""
        return False

    def wipe(self) -> str:
        """Empty the data directory, as if the disk had been replaced; return what was done."""
        entries = list(self.data.iterdir())
        for entry in entries:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        return f"removed {len(entries)} entries"

    def damage(self, operation: str, rng: random.Random) -> str:
        """Damage the newest segment: ``torn`` cuts its tail, ``flip`` flips a bit near its end. Return a note."""
        files = [f for f in self.data.glob(SEGMENTS) if f.is_file() and f.stat().st_size]
        newest = max(files, key=lambda f: (f.stat().st_mtime_ns, str(f)), default=None)
        done = None if newest is None else damage_file(newest, operation, rng)
        if newest is None or done is None:
            return "nothing to damage"
        return f"{done} in {newest.relative_to(self.data)}"


class SmallDisk(Disk):
    """A disk that can be full: tmpfs."""

    def __init__(self, root: Path, *, size_mb: int) -> None:
        self._size_mb = size_mb
        super().__init__(root)

    def _prepare(self) -> None:
        run("mount", "-t", "tmpfs", "-o", f"size={self._size_mb}m", "none", str(self.root))

    def fill(self) -> None:
        """Use up all free space."""
        with (self.root / "filler").open("ab", buffering=0) as filler:
            size = MEGABYTE
            while size:
                try:
                    filler.write(bytes(size))
                except OSError:
                    size //= 2

    def free(self) -> None:
        """Free the space that ``fill`` used."""
        (self.root / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount; retry, because a process that was just killed may still use the file system."""
        for _ in range(UNMOUNT_ATTEMPTS):
            done = subprocess.run(["umount", self.root], check=False, stderr=subprocess.DEVNULL)
            if done.returncode == 0:
                return
            time.sleep(0.1)
        raise DiskError(f"{self.root} cannot be unmounted")


class LoopDisk(SmallDisk):
    """A small disk that can also lose its power: ext4 in a file."""

    def _prepare(self) -> None:
        self._image = self.root.with_suffix(".img")
        with self._image.open("wb") as image:
            image.truncate(self._size_mb * MEGABYTE)
        run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()

    def _mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self.root))

    @property
    def can_lose_power(self) -> bool:
        """Return True."""
        return True

    def cut_power(self) -> None:
        """Stop the file system without flushing anything."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def restore_power(self) -> None:
        """Mount the file system again."""
        super().close()
        self._mount()

    def close(self) -> None:
        """Unmount, and remove the image."""
        super().close()
        self._image.unlink(missing_ok=True)


def make_disk(kind: DiskKind, root: Path, *, size_mb: int) -> Disk:
    """Return a disk of this kind."""
    match kind:
        case DiskKind.DIR:
            return Disk(root)
        case DiskKind.TMPFS:
            return SmallDisk(root, size_mb=size_mb)
        case DiskKind.LOOP:
            return LoopDisk(root, size_mb=size_mb)


def damage_file(path: Path, operation: str, rng: random.Random) -> str | None:
    """Damage one file; return what was done, or None if the file has only preallocated zeros."""
    with path.open("r+b") as file:
        size = len(file.read().rstrip(b"\0"))
        if not size:
            return None
        if operation == "torn":
            lost = min(size, int(2 ** rng.uniform(0, TORN_BYTES_LOG2_MAX)))
            file.truncate(size - lost)
            done = f"cut {lost} bytes"
        else:
            at = rng.randrange(max(0, size - FLIP_WITHIN_BYTES), size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ (1 << rng.randrange(8))]))
            done = f"flipped a bit at {at} of {size}"
        file.flush()
        os.fsync(file.fileno())
    return done


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def enter_mount_namespace() -> None:
    """Give this process a private mount namespace, whose mounts end with the process and its children.

    Children share mount events with it. A node in another namespace would otherwise keep a disk mounted after it was
    unmounted here, and a power cut would not take effect.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "small disks need root")
    for flag in (MS_PRIVATE, MS_SHARED):
        if libc.mount(b"none", b"/", None, MS_REC | flag, None):
            raise OSError(ctypes.get_errno(), "mount propagation")


def run(*command: str) -> None:
    """Run a system tool; raise DiskError with its error output."""
    done = subprocess.run(
        command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise DiskError(f"{' '.join(command)}: {done.stderr.strip()}")
