"""Standard input and output next to an event loop: blocking calls run on a thread that can be left behind.

A pipe may block a read or a write forever. Meanwhile the loop goes on, and the process can end: the thread is a daemon.
It works on descriptors, not on Python's buffered streams, because a blocked thread would hold their locks.
"""

import asyncio
import contextlib
import io
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Self, TypeVar

T = TypeVar("T")


class DaemonThread:
    """Run blocking calls one after the other. A context manager; a call that never returns is left behind."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)

    async def call(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, or raise its error."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def tell(result: T | None, error: Exception | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                # Without an error there is a result. If T is None, the result is None.
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
                # The loop was closed during the call, so no task waits for the result.
                return

        self._jobs.put(job)
        return await done

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes. Blocks while the reader of the pipe does not read.

    Raises:
        BrokenPipeError: the reader closed the pipe.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def fill_closed() -> None:
    """Open the null device in place of standard streams that were closed.

    Otherwise the next socket would get the stream's number, and output to the stream would go to the socket. Output to
    a closed standard output is an error, as on a full disk. Output to a closed standard error is dropped.
    ``sys.__stdin__`` and ``sys.__stdout__`` stay None, and so still show that the stream was closed.
    """
    for name, mode, flags in (
        ("stdin", "r", os.O_RDWR),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_RDWR),
    ):
        if getattr(sys, name) is None:
            # The lowest free number is that of the stream.
            descriptor = os.open(os.devnull, flags)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115


def drop_unwritten() -> None:
    """Discard output that could not be written; the interpreter would try again at its end, and report an error."""
    null = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(null, sys.stdout.fileno())
    os.close(null)
