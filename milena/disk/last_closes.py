"""Descriptors of files that have lost their last name are closed on a thread of their own.

The last close of such a file frees its blocks, and whoever closes waits for it: tens of milliseconds for a segment
where the file system tells the disk about every extent (ext4 mounted with ``discard``), and long on any that has many
to free. A log that forgets old segments does so on the loop that answers writers.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

WAITING_MAX = 64
"""Descriptors that wait for the thread; who brings more closes for itself, for a process may have only so many."""


class LastCloses:
    """Closes descriptors, soon; any thread may bring one."""

    def __init__(self, close: Callable[[int], None]) -> None:
        """``close`` is the operating system's."""
        self._close_now = close
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="milena-last-close")
        self._room = threading.Semaphore(WAITING_MAX)

    def close(self, descriptor: int) -> None:
        """Close it on the thread; here and now where too many wait, or the interpreter is about to end."""
        if self._room.acquire(blocking=False):
            try:
                self._pool.submit(self._close, descriptor)
            except RuntimeError:
                self._room.release()
            else:
                return
        self._close_now(descriptor)

    def stop(self) -> None:
        """Wait for those that were brought; later ones are closed by whoever brings them."""
        self._pool.shutdown()

    def _close(self, descriptor: int) -> None:
        try:
            self._close_now(descriptor)
        finally:
            self._room.release()
