"""Turns a core: one thread with a loop of its own, one pump, one timer.

Whatever happens to the core is followed by a tick, and what arrives together (in one read of a socket, in one hand-over
of requests) by one: it is synced and sent together. ``tick`` does so at once, ``kick`` in the loop's next turn. Each
turn of a loop gives up the interpreter's lock, and may have to wait for it while the data loop works: there are as few
on a commit's way as can be. Between events a timer wakes the core when something is due,
and not before: an idle cluster costs next to nothing.
"""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from raft_meta.consensus.core import RaftCore

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_TICK_SECONDS_MIN: Final = 0.001
"""A core that says it is due now, after a tick, is asked again this much later: no spinning."""


class LoopThread:
    """A thread that runs one event loop until stopped."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def call(self, callback: Callable[[], object]) -> bool:
        """Run on the loop, from any thread; False when it has stopped."""
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return False
        return True

    async def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Await a coroutine on this loop from another one."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    async def stop(self) -> None:
        """Stop the loop and wait for the thread, off the caller's loop."""
        if not self._thread.is_alive():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)


class Driver:
    """Ticks one core. Owned by the quorum's loop.

    ``on_tick``: called after every tick. ``on_fatal``: the core raised; nothing of it may be used again.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        on_tick: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._on_tick = on_tick
        self._on_fatal = on_fatal
        self._core: RaftCore | None = None
        self._is_scheduled = False
        self._timer: asyncio.Handle | None = None
        self._timer_due = 0.0
        """Kept here: what uvloop gives for a moment that is almost over does not know when it is."""
        self._executor = concurrent.futures.ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="quorum-snapshot"
        )

    @property
    def core(self) -> RaftCore | None:
        """The core, while it may be used."""
        return self._core

    def start(self, core: RaftCore) -> None:
        """Begin to tick."""
        self._core = core
        self.kick()

    def stop(self) -> RaftCore | None:
        """Tick no more; returns the core, to be closed."""
        core, self._core = self._core, None
        if self._timer is not None:
            self._timer.cancel()
        return core

    def close(self) -> None:
        """Wait for work in the background."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def tick(self) -> None:
        """Tick now: all that came together has been done to the core."""
        self._pump()

    def kick(self) -> None:
        """Tick soon."""
        if not self._is_scheduled and self._core is not None:
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def guarded(self, action: Callable[[RaftCore], None]) -> None:
        """Do something to the core, then tick; what it raises is fatal."""
        self.do(action)
        self.kick()

    def do(self, action: Callable[[RaftCore], None]) -> None:
        """Do something to the core, of which more comes at once, and then a tick; what it raises is fatal."""
        if self._core is None:
            return
        try:
            action(self._core)
        except BaseException as error:  # noqa: BLE001  # whatever it is, this core must not go on
            self._fail(error)

    def in_background(
        self, job: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        """Run a job on the snapshot thread and ``done`` on the loop."""
        future = self._loop.run_in_executor(self._executor, job)

        def finished(finished_future: "asyncio.Future[None]") -> None:
            if not finished_future.cancelled():
                error = finished_future.exception()
                self.guarded(lambda _: done(error))

        future.add_done_callback(finished)

    def _pump(self) -> None:
        self._is_scheduled = False
        core = self._core
        if core is None:
            return
        try:
            core.advance()
            self._on_tick()
            self._arm(core)
            # What was sent is with the kernel: the others sync at the same time.
            core.sync()
        except BaseException as error:  # noqa: BLE001  # whatever it is, this core must not go on
            self._fail(error)

    def _arm(self, core: RaftCore) -> None:
        due = max(core.next_due(), self._loop.time() + _TICK_SECONDS_MIN)
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        core = self._core
        if core is None:
            return
        if core.next_due() > self._loop.time():
            # What it was armed for has been done on the way.
            self._arm(core)
        else:
            self.kick()

    def _fail(self, error: BaseException) -> None:
        core = self.stop()
        if core is None:
            return
        _log.critical("quorum stopped reason=%r", str(error), exc_info=error)
        core.wal.abandon()
        self._on_fatal(error)
