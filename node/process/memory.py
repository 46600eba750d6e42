"""Returns freed memory to the system that the C library keeps, if glibc is the allocator.

With the thresholds that a node sets (``node.cli``), glibc keeps the blocks of large bodies, because mapping them again
would cost more than copying their bytes. After a burst, this can be hundreds of megabytes. The heap does not shrink by
itself, because a small block that is in use lies at its end.
"""

import ctypes
from functools import cache

from milena.model.clock import Clock

KEPT_BYTES_MAX = 96 << 20
"""Largest number of free bytes that the heap may keep: enough for the bodies of a busy node."""

REST_MS = 30_000
"""Shortest time between two returns, in ms. A node under load would soon need the same pages again. Getting them from
the system costs more than copying the bytes that it stores there."""


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc; ``fordblks`` are the free bytes."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


@cache
def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    if not (hasattr(library, "mallinfo2") and hasattr(library, "malloc_trim")):
        return None
    library.mallinfo2.restype = _Mallinfo
    return library


def kept_bytes() -> int:
    """Return the number of bytes that were freed but not returned to the system; 0 without glibc."""
    library = _glibc()
    return 0 if library is None else int(library.mallinfo2().fordblks)


class Returns:
    """Decides when to return memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms: int | None = None

    def are_due(self) -> bool:
        """Return whether enough is kept and the last return was long ago. If so, note that memory is returned now."""
        now_ms = self._clock.now_ms()
        if self._last_ms is not None and now_ms - self._last_ms < REST_MS:
            return False
        if kept_bytes() <= KEPT_BYTES_MAX:
            return False
        self._last_ms = now_ms
        return True


def give_back() -> None:
    """Return free pages to the system. This takes some milliseconds. Safe from any thread."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(KEPT_BYTES_MAX // 2)
