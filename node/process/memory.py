"""Memory that the C library keeps after it was freed: given back now and then, where glibc is the allocator.

The thresholds that a node sets (``node.cli``) make it keep blocks of large bodies, since mapping them anew would cost
more than moving their bytes. After a burst of them that can be hundreds of megabytes, in a heap with something small at
its end that never shrinks by itself.
"""

import ctypes
from functools import cache

from milena.model.clock import Clock

KEPT_BYTES_MAX = 96 << 20
"""Free bytes that the heap may keep: enough for the bodies of a busy node."""

REST_MS = 30_000
"""Between one return and the next: a node under load would take the same pages again at once, which costs it more than
to move the bytes that it fills them with."""


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
    """Bytes that were freed and not given back; 0 where nobody can tell."""
    library = _glibc()
    return 0 if library is None else int(library.mallinfo2().fordblks)


class Returns:
    """When memory is to be given back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms: int | None = None

    def are_due(self) -> bool:
        """Whether enough is kept, and the last time is long ago; if so, this is the time."""
        now_ms = self._clock.now_ms()
        if self._last_ms is not None and now_ms - self._last_ms < REST_MS:
            return False
        if kept_bytes() <= KEPT_BYTES_MAX:
            return False
        self._last_ms = now_ms
        return True


def give_back() -> None:
    """Give free pages back to the system. Takes some milliseconds; any thread."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(KEPT_BYTES_MAX // 2)
