"""A result to come whose taker is called back at once, in the turn in which it is there.

A future calls back in the loop's next turn, and where one client waits for one record such turns are a good part of
its wait. Its methods are those of a future, as far as they are needed. Belongs to one event loop.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

from milena.model.errors import MilenaError

S = TypeVar("S")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Taker(Protocol[T_contra]):
    """Receiver of a result or an error, once; a future is one."""

    def done(self) -> bool:
        """It has one, or does not want one any more."""

    def set_result(self, result: T_contra, /) -> None:
        """Here it is."""

    def set_exception(self, error: BaseException, /) -> None:
        """There is none."""


class Pending(Generic[T]):
    """One result or error, and who is called back with it.

    Made by ``Pending()``: ``Pending[T]()`` takes ten times as long.

    Invariant: it is done once, by a result, an error or a cancellation; what comes later is a mistake of the caller's.
    """

    __slots__ = ("_callbacks", "_error", "_is_cancelled", "_is_done", "_result")

    def __init__(self) -> None:
        self._is_done = False
        self._is_cancelled = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Pending[T]], object]] = []

    def done(self) -> bool:
        """Whether there is a result, an error or a cancellation."""
        return self._is_done

    def cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._is_cancelled

    def result(self) -> T:
        """The result.

        Raises:
            BaseException: the error; ``CancelledError`` when it was cancelled.
        """
        error = self.exception()
        if error is not None:
            raise error
        return self._result  # type: ignore[return-value]  # done without an error: it is set

    def exception(self) -> BaseException | None:
        """The error, if that is what came of it.

        Raises:
            CancelledError: it was cancelled.
        """
        assert self._is_done, "asked before it was done"
        if self._is_cancelled:
            raise asyncio.CancelledError
        return self._error

    def add_done_callback(self, callback: "Callable[[Pending[T]], object]") -> None:
        """Call back once it is done; at once if it is."""
        self._callbacks.append(callback)
        if self._is_done:
            self._call_back()

    def set_result(self, result: T) -> None:
        """It has come."""
        assert not self._is_done, "done twice"
        self._is_done = True
        self._result = result
        self._call_back()

    def set_exception(self, error: BaseException) -> None:
        """It will not come."""
        assert not self._is_done, "done twice"
        self._is_done = True
        self._error = error
        self._call_back()

    def cancel(self) -> bool:
        """Nobody waits for it any more; False: it was done before."""
        if self._is_done:
            return False
        self._is_done = self._is_cancelled = True
        self._call_back()
        return True

    def _call_back(self) -> None:
        """What goes wrong there is not the affair of whoever brought the result, as with a future."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception as error:  # noqa: BLE001 - reported where those of a future's callbacks are
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a callback failed", "exception": error}
                )

    def __await__(self) -> Generator[object, None, T]:
        """The result, for a task; who is cancelled while it waits cancels it."""
        if not self._is_done:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if woken.done() else woken.set_result(None))
            try:
                yield from woken.__await__()
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()


def in_a_task(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[Any]]) -> Pending[T]:
    """What comes of ``work``, which ends early when nobody waits for it any more; ``tasks`` keeps it for so long."""
    pending: Pending[T] = Pending()
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)

    def on_end(done: asyncio.Task[T]) -> None:
        tasks.discard(done)
        if done.cancelled():
            pending.cancel()
            return
        error = done.exception()
        if error is None:
            if not pending.done():
                pending.set_result(done.result())
        elif not pending.done():
            pending.set_exception(error)
        elif not isinstance(error, MilenaError):
            # A broken invariant goes on through the loop, where nobody waits for it.
            raise error

    def on_over(done: Pending[T]) -> None:
        if done.cancelled():
            task.cancel()

    task.add_done_callback(on_end)
    pending.add_done_callback(on_over)
    return pending


def mapped(source: Pending[S], convert: Callable[[Pending[S]], T]) -> Pending[T]:
    """What ``convert`` makes of one that is done, or what it raises; a cancellation goes from each to the other."""
    pending: Pending[T] = Pending()

    def on_done(done: Pending[S]) -> None:
        if pending.done():
            return
        if done.cancelled():
            pending.cancel()
            return
        try:
            result = convert(done)
        except Exception as error:  # noqa: BLE001 - whoever waits has to hear of it
            pending.set_exception(error)
        else:
            pending.set_result(result)

    def on_over(done: Pending[T]) -> None:
        if done.cancelled():
            source.cancel()

    source.add_done_callback(on_done)
    pending.add_done_callback(on_over)
    return pending
