"""Free memory that the machine really has, before somebody fills it.

A virtual machine's host may take back what the machine has freed, and give it again a page at a time when it is
touched (free page reporting): a core then copies 0.4 GB/s into new pages instead of several. Turns that write gigabytes
into the page cache would measure that, and the more the faster a contender writes. A server that has run for a while
has no memory that was never touched: its page cache has grown into it.
"""

import mmap
from pathlib import Path

RESIDENT_BYTES = 2 << 30
"""Slightly more than the memory that the fastest contender dirties in a turn, on all its nodes."""
_MEMORY = Path("/proc/meminfo")
_LIMIT = Path("/sys/fs/cgroup/memory.max")
_USED = Path("/sys/fs/cgroup/memory.current")


def make_resident(byte_count: int = RESIDENT_BYTES) -> int:
    """Touch so much free memory, a quarter of what is available at most, and free it; returns the bytes.

    The kernel hands out first what was freed last, so what is written next finds these pages.
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
