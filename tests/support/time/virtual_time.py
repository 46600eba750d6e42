"""An event loop with a virtual clock: it never waits, and fails at once if nothing could wake it again.

``asyncio.timeout``, ``call_later`` and ``LoopClock`` use its time. So a test of an hour takes a moment, and runs the
same way every time. Work for threads runs on the loop itself (``LoopExecutor``), at once or after a virtual delay.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from milena.model.types import MonotonicMs, WallMs

P = ParamSpec("P")
T = TypeVar("T")

START_S = 1_000.0
WALL_START_MS = 1_700_000_000_000


class DeadlockError(AssertionError):
    """All tasks wait, and no timer is left that could wake one."""


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that never waits: it makes the loop move its time forward instead."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and (timeout is None or timeout > 0):
            self.loop.jump()
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop; see the module. ``failures`` has the exceptions of callbacks and forgotten tasks."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)
        self._virtual_s = START_S
        self.failures: list[BaseException | str] = []
        self.set_exception_handler(self._on_failure)
        self.set_default_executor(InlineThreads())

    def time(self) -> float:
        return self._virtual_s

    def jump(self) -> None:
        """Move the time to the next timer."""
        # The loop has no public list of its timers. It is a heap, and the loop has just taken cancelled ones from its
        # top.
        scheduled = self._scheduled  # type: ignore[attr-defined]
        if not scheduled:
            raise DeadlockError("everybody waits for ever")
        assert not scheduled[0].cancelled(), "the loop takes cancelled timers away before it waits"
        self._virtual_s = max(self._virtual_s, scheduled[0].when())

    def stall(self, ms: float) -> None:
        """Let time pass without a turn of the loop."""
        self._virtual_s += ms / 1000

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: the jobs ran on this loop. asyncio's method would wait for a thread and stop the virtual time."""
        del timeout

    def _on_failure(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        del loop
        self.failures.append(context.get("exception") or str(context["message"]))


class LoopClock:
    """A clock with the running loop's time; its wall clock is ``skew_ms`` ahead of the others."""

    def __init__(self, skew_ms: int = 0) -> None:
        self.skew_ms = skew_ms

    def now_ms(self) -> MonotonicMs:
        return MonotonicMs(int(asyncio.get_running_loop().time() * 1000 + 1e-4))

    def wall_ms(self) -> WallMs:
        return WallMs(WALL_START_MS + self.now_ms() + self.skew_ms)

    def expiry_ms(self) -> WallMs:
        return self.wall_ms()

    async def sleep(self, ms: float) -> None:
        await asyncio.sleep(max(0.0, ms / 1000))


class LoopExecutor(Executor):
    """Runs jobs on the loop: at once, after ``delay_ms()``, or when a test releases them (``hold``)."""

    def __init__(self, delay_ms: Callable[[], float] | None = None) -> None:
        self._delay_ms = delay_ms
        self._held: list[Callable[[], None]] = []
        self.is_holding = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        job = functools.partial(run_job, future, functools.partial(fn, *args, **kwargs))
        if self.is_holding:
            self._held.append(job)
        elif self._delay_ms is None:
            job()
        else:
            asyncio.get_running_loop().call_later(self._delay_ms() / 1000, job)
        return future

    def hold(self) -> None:
        """Hold back jobs from now on, like a slow disk."""
        self.is_holding = True

    def release(self) -> None:
        """Run the held jobs, and run further jobs as usual."""
        self.is_holding = False
        held, self._held = self._held, []
        for job in held:
            job()


class InlineThreads(ThreadPoolExecutor):
    """An executor for ``asyncio.to_thread``, which requires a ``ThreadPoolExecutor``."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        run_job(future, functools.partial(fn, *args, **kwargs))
        return future


class LateThreads(InlineThreads):
    """Each job takes ``ms``; ``jobs`` counts them."""

    def __init__(self, *, ms: float) -> None:
        super().__init__()
        self.jobs = 0
        self._ms = ms

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        self.jobs += 1
        future: Future[T] = Future()
        job = functools.partial(run_job, future, functools.partial(fn, *args, **kwargs))
        asyncio.get_running_loop().call_later(self._ms / 1000, job)
        return future


def run_job(future: "Future[T]", job: Callable[[], T]) -> None:
    """Run a job now, in this thread, and set the result of its future."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(job())
    except BaseException as error:
        future.set_exception(error)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new loop; raise exceptions of callbacks and forgotten tasks, too."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        result = runner.run(main)
    assert not loop.failures, loop.failures
    return result


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorate an async test so that it runs in virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs))

    return run


async def settle(turns: int = 20) -> None:
    """Run everything that is ready now, without a change of time."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def after(ms: float) -> None:
    """Wait for this much virtual time, and run everything that happens at its end."""
    await asyncio.sleep(ms / 1000)
    await settle()


def current_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop
