"""Make free memory resident before a turn writes into it.

The host of a virtual machine may take back memory that the machine has freed. When the machine touches that memory
again, the host returns it page by page (free page reporting). A core then writes 0.4 GB/s into new pages, instead of
several. Turns that write gigabytes into the page cache would measure this effect, most of all those of the fastest
contender. On a server that has run for a while the effect is absent, because its page cache has touched all memory.
"""

import mmap
from pathlib import Path

RESIDENT_BYTES = 2 << 30
"""Slightly more than the memory that the fastest contender dirties in a turn, on all its nodes."""
_MEMORY = Path("/proc/meminfo")
_LIMIT = Path("/sys/fs/cgroup/memory.max")
_USED = Path("/sys/fs/cgroup/memory.current")


def make_resident(byte_count: int = RESIDENT_BYTES) -> int:
    """Touch and free this much memory, at most a quarter of what is available; return the bytes.

    The kernel hands out the most recently freed pages first, so the next writes get these pages.
    """
    size = min(byte_count, available_bytes() // 4) // mmap.PAGESIZE * mmap.PAGESIZE
    if size:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        mmap.mmap(-1, size, flags=flags).close()
    return size


def available_bytes(*, memory: Path = _MEMORY, limit: Path = _LIMIT, used: Path = _USED) -> int:
    """Return the bytes that can be allocated without swapping or killing a process; 0 if unknown."""
    if not memory.exists():
        return 0
    (line,) = (line for line in memory.read_text().splitlines() if line.startswith("MemAvailable:"))
    available = int(line.split()[1]) << 10
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        available = min(available, int(text) - int(used.read_text()))
    return max(0, available)
