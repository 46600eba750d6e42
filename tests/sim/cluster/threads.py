"""Virtual time, and the threads and processes that share it.

A simulated process has several threads; an asyncio loop is one thread. All threads of all processes take turns under
one ``Scheduler``, one callback at a time. So a run is a sequence of *events* that is determined by one seed. The
operating system acts on processes only between two events. A stopped process (SIGSTOP) keeps its due callbacks for
later. A killed process never runs again, not even its ``finally`` blocks.

This module does not know the code that runs on it.
"""

import asyncio
import contextlib
import contextvars
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from heapq import heappop, heappush
from math import log
from random import Random
from typing import Any

INSTANT_EVENTS_MAX = 200_000
"""The number of events at the same virtual time after which the run counts as a busy loop."""

SECONDS_MAX = 1_000.0
"""The most virtual seconds of a run; every wait in a run is much shorter."""

CLOSES_MAX = 20
"""The most nested ``finally`` blocks that wait."""

WAKE_S = 1 / 5_000
"""The mean time in s that a thread takes to wake up."""

TASKS_KEPT_MIN = 1_000
"""The length of the list of tasks at which ended tasks are removed."""


class ProcessExitError(BaseException):
    """The running process has ended. It is no ``Exception``, so that the process's code cannot catch it."""


class LivelockError(AssertionError):
    """Callbacks run for ever at the same virtual time."""


class SimHandle:
    """Does the work of ``asyncio.Handle`` and ``TimerHandle``, as far as asyncio's code needs it."""

    __slots__ = ("_when", "args", "callback", "context", "is_cancelled")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        when: float = 0.0,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.is_cancelled = False
        self._when = when

    def cancel(self) -> None:
        """Skip the callback when its time comes; release its objects now."""
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when


set_running_loop = asyncio._set_running_loop


def _nothing() -> None:
    """Do nothing, instead of a cancelled callback."""


class Scheduler:
    """The order of all events; ``now`` is in seconds."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.events = 0
        self.digest = 0
        """A hash over the sequence of events, which is equal in equal runs."""
        self.current: Process | None = None
        self.after_event: Callable[[Process, SimLoop], None] = lambda process, loop: None
        """A function to call after an event of a loop with ``is_watched``, or a process with ``is_touched``."""
        self._ready: deque[tuple[SimLoop, SimHandle]] = deque()
        self._timers: list[tuple[float, int, SimLoop, SimHandle]] = []
        self.tasks: list[weakref.ref[SimTask]] = []
        """References to all tasks that may still wait, in the order of their creation."""
        self._tasks_max = TASKS_KEPT_MIN
        self.dropped: list[SimHandle] = []
        self._running: SimLoop | None = None
        self._serial = 0
        self._is_over = False

    def serial(self) -> int:
        """Return a new serial number."""
        self._serial += 1
        return self._serial

    def soon(self, loop: "SimLoop", handle: SimHandle) -> None:
        """Run a callback now, after those that are ready."""
        self._ready.append((loop, handle))

    def at(self, when: float, loop: "SimLoop", handle: SimHandle) -> None:
        """Run a callback at a time."""
        self._serial += 1
        heappush(self._timers, (when, self._serial, loop, handle))

    def watch(self, task: "SimTask") -> None:
        """Add a task that ``clear`` must end."""
        tasks = self.tasks
        tasks.append(weakref.ref(task))
        if len(tasks) > self._tasks_max:
            tasks[:] = [ref for ref in tasks if not ((known := ref()) is None or known.done())]
            self._tasks_max = max(TASKS_KEPT_MIN, 2 * len(tasks))

    def stop(self) -> None:
        """End ``run`` after this event."""
        self._is_over = True

    def clear(self) -> None:
        """Drop all callbacks and end all waiting tasks, after the run."""
        self._ready.clear()
        self._timers.clear()
        for task in [task for ref in self.tasks if (task := ref()) is not None]:
            for _ in range(CLOSES_MAX):
                # A task that waits in a ``finally`` block must be closed again there.
                with contextlib.suppress(BaseException):
                    task.get_coro().close()
                    break
        self.dropped.clear()

    def run(self) -> None:
        """Run events until ``stop``."""
        try:
            self._run_all()
        finally:
            self.set_running(None)

    def _run_all(self) -> None:
        ready, timers, dropped = self._ready, self._timers, self.dropped
        next_ready = ready.popleft
        instant = 0
        # One loop with local variables: apart from production code, a run spends most of its time here.
        while not self._is_over:
            if ready:
                instant += 1
                if instant > INSTANT_EVENTS_MAX:
                    raise LivelockError(f"busy at {self.now:.3f} s: {ready[0]}")
                loop, handle = next_ready()
            else:
                instant = 0
                if not timers:
                    raise LivelockError("everybody waits for ever")
                when, _, loop, handle = heappop(timers)
                if when > self.now:
                    self.now = when
                    if when > SECONDS_MAX:
                        raise LivelockError(f"not over after {SECONDS_MAX} s")
            if handle.is_cancelled:
                continue
            process = loop.process
            if process.is_dead:
                # Keep the handle until the end, so that ``finally`` blocks of its process do not run.
                dropped.append(handle)
                continue
            if process.is_paused:
                process.postponed.append((loop, handle))
                continue
            self.events += 1
            self.digest = hash((self.digest, self.now, loop.number))
            self.current = process
            if loop is not self._running:
                self._running = loop
                set_running_loop(loop)
            try:
                handle.context.run(handle.callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                loop.on_error(error)
            finally:
                self.current = None
            if loop.is_watched or process.is_touched:
                self.after_event(process, loop)

    def set_running(self, loop: "SimLoop | None") -> None:
        """Tell asyncio which loop runs. The call is expensive, and mostly the loop is the same."""
        if loop is not self._running:
            self._running = loop
            set_running_loop(loop)


class Process:
    """Several threads that start and end together.

    ``rate`` is the speed of the monotonic clock. ``on_exit`` gets the error if the process ends itself. ``work_ms``
    returns the time of a job on a worker thread.
    """

    def __init__(self, scheduler: Scheduler, name: str, *, rate: float = 1.0) -> None:
        self.scheduler = scheduler
        self.name = name
        self.rate = rate
        self.began = scheduler.now
        self.boot_s = scheduler.rng.uniform(1_000, 9_000)
        self.is_dead = False
        self.is_paused = False
        self.is_touched = False
        """Whether an object that the checker watches may have changed."""
        self.postponed: deque[tuple[SimLoop, SimHandle]] = deque()
        self.workers = SimLoop(self)  # type: ignore[abstract]  # only on paper
        self.make_loop: Callable[[Process], SimLoop] = SimLoop
        self.work_ms: Callable[[], float] = lambda: 0.0
        self.on_exit: Callable[[BaseException], None] = lambda error: None
        self.errors: list[BaseException | str] = []

    def monotonic(self) -> float:
        """Return the time of its clock, in seconds."""
        return self.boot_s + (self.scheduler.now - self.began) * self.rate

    def exit(self, error: BaseException) -> None:
        """End the process with an error; the running callback ends here."""
        if not self.is_dead:
            self.is_dead = True
            self.on_exit(error)
        raise ProcessExitError(self.name)

    def pause(self) -> None:
        """Pause the process (SIGSTOP)."""
        self.is_paused = True

    def resume(self) -> None:
        """Continue the process (SIGCONT): callbacks that became due run now, in their order."""
        self.is_paused = False
        postponed, self.postponed = self.postponed, deque()
        for loop, handle in postponed:
            self.scheduler.soon(loop, handle)

    def loop(self) -> "SimLoop":
        """Return a new thread of the process."""
        return self.make_loop(self)


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task whose hash is a serial number, so that sets of tasks have the same order in every run."""

    def __init__(self, coro: Any, *, loop: "SimLoop", **named: Any) -> None:
        self._serial = loop.process.scheduler.serial()
        super().__init__(coro, loop=loop, **named)
        self._log_destroy_pending = False
        loop.scheduler.watch(self)

    def __hash__(self) -> int:
        return self._serial

    def __eq__(self, other: object) -> bool:
        return self is other


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one thread, on the scheduler's time. ``wires`` adds the network."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.scheduler = process.scheduler
        self.number = process.scheduler.serial()
        self.is_ended = False
        self.is_watched = False
        """Whether the checker runs after every event of this loop."""
        self._woken_at = 0.0

    # Methods of asyncio's loops.

    def time(self) -> float:
        return self.process.monotonic()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_ended

    def is_closed(self) -> bool:
        return self.is_ended

    def close(self) -> None:
        self.is_ended = True

    def stop(self) -> None:
        self.is_ended = True

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> SimTask:
        return SimTask(coro, loop=self, name=name, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> SimHandle:
        handle = SimHandle(callback, args, context)
        if self.process.is_dead:
            # Keep the handle, so that its coroutine is not collected as never awaited.
            self.scheduler.dropped.append(handle)
        else:
            self.scheduler._ready.append((self, handle))
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> SimHandle:
        if self.is_ended:
            raise RuntimeError("the loop is closed")
        handle = SimHandle(callback, args, context)
        # Other threads run while this one wakes up. Callbacks keep their order.
        scheduler = self.scheduler
        woken_at = scheduler.now - WAKE_S * log(1.0 - scheduler.rng.random())
        if woken_at > self._woken_at:
            self._woken_at = woken_at
        scheduler.at(self._woken_at, self, handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> SimHandle:
        return self.call_at(self.process.monotonic() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> SimHandle:
        handle = SimHandle(callback, args, context, when)
        process = self.process
        scheduler = self.scheduler
        # Run just after the due time: a clock that is rounded down must not wake a sleeper too early.
        due = process.began + (when - process.boot_s) / process.rate + 1e-7
        scheduler.at(max(scheduler.now, due), self, handle)
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run a job on a worker thread of this process, which takes some time."""
        del executor
        future = self.create_future()
        self.scheduler.at(
            self.scheduler.now + self.process.work_ms() / 1000,
            self.process.workers,
            SimHandle(self._work, (future, func, args), None),
        )
        return future

    def _work(self, future: "asyncio.Future[Any]", func: Callable[..., Any], args: Any) -> None:
        error: BaseException | None = None
        result: object = None
        # A worker thread has no event loop.
        self.scheduler.set_running(None)
        try:
            result = func(*args)
        except ProcessExitError:
            raise
        except BaseException as raised:
            error = raised
        if not self.is_ended:
            self.call_soon_threadsafe(_settle, future, result, error)

    def on_error(self, error: BaseException) -> None:
        """Report an exception of a callback."""
        if not self.process.is_dead:
            self.process.errors.append(error)
            self.process.is_touched = True

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.process.is_dead:
            self.process.errors.append(context.get("exception") or str(context["message"]))
            self.process.is_touched = True


def _settle(future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
