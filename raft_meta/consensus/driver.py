"""Drives a core: one thread with its own event loop, and one timer.

After every input of the core, the driver calls the core's ``advance`` and ``sync``. One such pair of calls is a tick.
Inputs that arrive together, in one read of a socket or one batch of requests, share one tick, so they are synced and
sent together. ``Driver.tick`` runs the tick at once, ``kick`` in the loop's next turn.

After each turn a loop releases the interpreter's lock. It may then wait for the lock while the data loop works. So a
commit takes as few turns as possible. Between inputs, a timer wakes the core only when something is due. So an idle
cluster uses almost no processor time.
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
"""If a core is due again right after a tick, the next tick waits this long, so that the loop does not spin."""


class LoopThread:
    """A thread that runs one event loop until ``stop``."""

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
        """Run a callback on the loop, from any thread; return False if the loop has stopped."""
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return False
        return True

    async def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on this loop and await it from another loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    async def stop(self) -> None:
        """Stop the loop, and wait for the thread without blocking the caller's loop."""
        if not self._thread.is_alive():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)


class Driver:
    """Ticks one core. Owned by the quorum's loop.

    ``on_tick``: called after every ``advance``. ``on_fatal``: called if the core raised an exception; the core must not
    be used again.
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
        """When the timer fires. The handle's own ``when`` is not used: uvloop's is wrong if the timer is almost due."""
        self._executor = concurrent.futures.ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="quorum-snapshot"
        )

    @property
    def core(self) -> RaftCore | None:
        """The core; None before ``start`` and after it stopped."""
        return self._core

    def start(self, core: RaftCore) -> None:
        """Start to tick this core."""
        self._core = core
        self.kick()

    def stop(self) -> RaftCore | None:
        """Stop ticking; return the core, which the caller closes."""
        core, self._core = self._core, None
        if self._timer is not None:
            self._timer.cancel()
        return core

    def close(self) -> None:
        """Wait for the snapshot job in progress."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def tick(self) -> None:
        """Tick now. Call this after the core has received all inputs that arrived together."""
        self._pump()

    def kick(self) -> None:
        """Tick in the loop's next turn."""
        if not self._is_scheduled and self._core is not None:
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def guarded(self, action: Callable[[RaftCore], None]) -> None:
        """Run an action on the core, then tick in the next turn. If the action raises, the core is stopped for good."""
        self.do(action)
        self.kick()

    def do(self, action: Callable[[RaftCore], None]) -> None:
        """Run an action on the core without a tick. If the action raises, the core is stopped for good.

        After the last of several actions, the caller must call ``tick`` or ``kick``.
        """
        if self._core is None:
            return
        try:
            action(self._core)
        except BaseException as error:  # noqa: BLE001  # whatever it is, this core must not go on
            self._fail(error)

    def in_background(
        self, job: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        """Run ``job`` on the snapshot thread, then ``done`` on the loop with the exception of ``job``, or None."""
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
            # ``advance`` has sent the messages. So this node and its followers sync at the same time.
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
            # A tick since then has done the work for which the timer was set.
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
