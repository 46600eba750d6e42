"""Standard input and output beside an event loop: blocking calls on a thread that nobody waits for.

A pipe may keep a read or a write waiting for ever. The loop goes on meanwhile, and so does the end of the process: the
thread is a daemon, and it works on descriptors, not on Python's buffered streams, whose locks it would take along.
"""

import asyncio
import contextlib
import io
import os
import queue
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


class DaemonThread:
    """Runs one blocking call after the other. A context manager; a call that never returns is left behind."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._jobs.put(None)

    async def call(self, work: Callable[[], T]) -> T:
        """Result or error of ``work``."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def tell(result: T | None, error: Exception | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                # Without an error there is a result, and None is one where T is None.
                done.set_result(result)  # type: ignore[arg-type]

        def job() -> None:
            result, failure = None, None
            try:
                result = work()
            except Exception as error:  # noqa: BLE001  # raised where the call is awaited
                failure = error
            try:
                loop.call_soon_threadsafe(tell, result, failure)
            except RuntimeError:
                # The loop was closed while the call was under way: nobody waits any more.
                return

        self._jobs.put(job)
        return await done

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything; blocks while the other side does not read.

    Raises:
        BrokenPipeError: the other side went away.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def fill_closed() -> None:
    """Open the null device in the place of standard streams that were closed.

    Else the next socket would get such a number, and what is written to the stream would go there. That a stream was
    closed still shows by ``sys.__stdin__`` or ``sys.__stdout__``, which are None.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest number that is free: that of the stream.
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115


def drop_unwritten() -> None:
    """Let what could not be written to standard output go: the interpreter would try again at its end, and complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(null, sys.stdout.fileno())
    os.close(null)
