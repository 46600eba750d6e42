"""An event loop on its own thread, for blocking programs.

The object may be used only in the process that created it. A fork copies the object but not the thread, and two
processes must not share connections.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

from milena.errors import ClientClosedError

T = TypeVar("T")

STOP_TIMEOUT_S = 10.0
"""How long ``close`` waits for the thread to end, after its tasks were cancelled, in seconds."""


class ClientLoopThread:
    """One loop, one thread, one process. Any other thread may call ``run``."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._loop = asyncio.new_event_loop()
        # A daemon thread does not keep the process running if the program forgets to close the client.
        self._thread = threading.Thread(target=self._work, name="milena", daemon=True)
        self._thread.start()

    @property
    def is_ours(self) -> bool:
        """True if the thread was started in this process."""
        return self._process_id == os.getpid()

    @property
    def is_usable(self) -> bool:
        """True if ``run`` may be called: this is the thread's process, and ``close`` was not called."""
        return self.is_ours and not self._loop.is_closed()

    @property
    def is_current(self) -> bool:
        """True if the caller is on the loop's thread, and must not block it."""
        return threading.current_thread() is self._thread

    def check(self) -> None:
        """Refuse use after a fork.

        Raises:
            ClientClosedError: the thread was started in another process.
        """
        if self._process_id != os.getpid():
            raise ClientClosedError(
                "this was opened in another process; open it in the process that uses it"
            )

    def run(self, work: Coroutine[object, object, T], timeout_s: float | None = None) -> T:
        """Run ``work`` on the loop and return its result. A timeout or an interrupt cancels the work.

        Raises:
            TimeoutError: the work took longer than ``timeout_s``.
            RuntimeError: called on the loop's thread, for example from a delivery callback.
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
            # After a result, this does nothing. After a timeout or an interrupt, it cancels the work.
            future.cancel()

    def call(self, function: Callable[[], T]) -> T:
        """Call ``function`` on the loop's thread; return its result. It raises the errors of ``run``."""

        async def work() -> T:
            return function()

        return self.run(work())

    def close(self) -> None:
        """Cancel running work, and end the thread. A second call, or a call after a fork, does nothing."""
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
