"""Worker threads for short waits on the disk, with as little work as possible around each wait.

``ThreadPoolExecutor`` takes several locks for each job, on both sides. Each lock is a chance for the two threads to
exchange the interpreter's lock in the middle of a write. A short sync then costs less than
these exchanges. Here a job is one item of a queue that is implemented in C.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SyncThreads(Executor):
    """Up to ``threads_max`` threads, which start when they are needed.

    Only one thread at a time may submit a job or call ``shutdown``. A submitted job cannot be cancelled.
    """

    def __init__(self, threads_max: int, *, name: str) -> None:
        """``name`` is the start of the threads' names."""
        self._threads_max = threads_max
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle: deque[None] = deque()
        """An item for each thread that waits for a job, or soon will. Both ends of a deque are safe from any thread."""
        self._threads: list[threading.Thread] = []
        self._is_shut_down = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Run a function on a thread. Callbacks of the future run on that thread.

        Raises:
            RuntimeError: ``shutdown`` was called.
        """
        if self._is_shut_down:
            raise RuntimeError("cannot run a job after shutdown")
        done: Future[T] = Future()
        # From here on, the future counts as running, so that it cannot be cancelled.
        done.set_running_or_notify_cancel()
        try:
            self._idle.pop()
        except IndexError:
            self._maybe_start_thread()

        def job() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - passed on to the caller that waits
                self._idle.append(None)
                done.set_exception(error)
            else:
                # Before the callbacks: they may lead to the next job, and this thread can take it.
                self._idle.append(None)
                done.set_result(result)

        self._jobs.put(job)
        return done

    def _maybe_start_thread(self) -> None:
        if len(self._threads) >= self._threads_max:
            return
        number = len(self._threads)
        # As a daemon: a process that ends without ``shutdown`` waits for no disk.
        thread = threading.Thread(target=self._run, name=f"{self._name}_{number}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        next_job = self._jobs.get
        while (job := next_job()) is not None:
            job()
            # Do not keep the last job, and everything that it refers to, while there is no next one.
            del job

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs, and end the threads after those that were submitted. ``wait``: until they have ended."""
        assert not cancel_futures, "a job is never cancelled"
        if not self._is_shut_down:
            self._is_shut_down = True
            for _ in self._threads:
                self._jobs.put(None)
        if wait:
            for thread in self._threads:
                thread.join()
