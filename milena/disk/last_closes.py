"""Closes descriptors of removed files on a separate thread.

The last close of a removed file frees its blocks, and the closing thread waits for that. This takes tens of
milliseconds for a segment if the file system reports every freed extent to the disk (ext4 mounted with ``discard``).
Retention removes segments on the event loop, and without this thread all writers would wait.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

WAITING_MAX = 64
"""Most descriptors that wait for the thread. Above this, the caller closes its descriptor itself."""


class LastCloses:
    """A thread that closes descriptors; any thread may hand one over."""

    def __init__(self, close: Callable[[int], None]) -> None:
        """``close`` is the operating system's close."""
        self._close_now = close
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="milena-last-close")
        self._room = threading.Semaphore(WAITING_MAX)

    def close(self, descriptor: int) -> None:
        """Close the descriptor on the thread; at once if too many wait, or the interpreter is about to end."""
        if self._room.acquire(blocking=False):
            try:
                self._pool.submit(self._close, descriptor)
            except RuntimeError:
                self._room.release()
            else:
                return
        self._close_now(descriptor)

    def stop(self) -> None:
        """Wait for the waiting descriptors; later ones are closed by their caller."""
        self._pool.shutdown()

    def _close(self, descriptor: int) -> None:
        try:
            self._close_now(descriptor)
        finally:
            self._room.release()
