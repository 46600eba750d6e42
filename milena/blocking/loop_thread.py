"""An event loop on a thread of its own, for programs that block.

Started when first used, in the process that uses it: a fork takes the object along but not the thread, and what is
opened in one process must not be used in another.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import TypeVar

from milena.errors import ClientClosedError

T = TypeVar("T")

STOP_TIMEOUT_S = 10.0
"""How long to wait for the loop's last tasks to see their cancellation."""


class ClientLoopThread:
    """One loop, one thread, one process. ``run`` may be called from any other thread."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._loop = asyncio.new_event_loop()
        # A daemon, so that a program that forgets to close still ends.
        self._thread = threading.Thread(target=self._work, name="milena", daemon=True)
        self._thread.start()

    @property
    def is_ours(self) -> bool:
        """It was started in this process."""
        return self._process_id == os.getpid()

    @property
    def is_usable(self) -> bool:
        """Work may be run on it."""
        return self.is_ours and not self._loop.is_closed()

    @property
    def is_current(self) -> bool:
        """The caller is on the loop's thread, and must not block it."""
        return threading.current_thread() is self._thread

    def check(self) -> None:
        """Refuse what a fork took along.

        Raises:
            ClientClosedError: it was started in another process.
        """
        if self._process_id != os.getpid():
            raise ClientClosedError(
                "this was opened in another process; open it in the process that uses it"
            )

    def run(self, work: Coroutine[object, object, T], timeout_s: float | None = None) -> T:
        """Run on the loop and wait for the result. What interrupts the wait cancels the work.

        Raises:
            TimeoutError: it took longer than ``timeout_s``.
            RuntimeError: called on the loop's thread, as from a delivery callback.
            ClientClosedError: called in another process, or after ``close``.
        """
        try:
            self.check()
            if self.is_current:
                raise RuntimeError("a blocking call on the loop's own thread would wait for itself")
            if self._loop.is_closed():
                raise ClientClosedError("the client is closed")
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        finally:
            # Nothing happens when it is done.
            future.cancel()

    def close(self) -> None:
        """Cancel what runs, end the thread. Safe to call again; does nothing in another process."""
        if not self.is_ours or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._end()

    def _end(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=STOP_TIMEOUT_S))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        asyncio.set_event_loop(None)
        self._loop.close()
