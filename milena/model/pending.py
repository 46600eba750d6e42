"""``Pending``: like a future, but it runs its callbacks at once, inside of ``set_result``.

``asyncio.Future`` runs its callbacks in the next turn of the event loop. For a client that waits for each record, these
turns are a large part of the latency. The methods are those of a future, as far as they are needed. A ``Pending``
belongs to one event loop.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

from milena.model.errors import MilenaError

S = TypeVar("S")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Taker(Protocol[T_contra]):
    """An object that takes one result or error, such as a future."""

    def done(self) -> bool:
        """Whether the object has a result or error already, or was cancelled."""

    def set_result(self, result: T_contra, /) -> None:
        """Pass the result."""

    def set_exception(self, error: BaseException, /) -> None:
        """Pass the error that came instead of a result."""


class Pending(Generic[T]):
    """One result or error, and the callbacks that wait for it.

    Create it with ``Pending()``: ``Pending[T]()`` takes ten times as long.

    Invariant: a ``Pending`` gets one result, error or cancellation. Setting a second one is a bug of the caller.
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
        """Whether ``cancel`` was called before there was a result or an error."""
        return self._is_cancelled

    def result(self) -> T:
        """Return the result.

        Raises:
            BaseException: the error; ``CancelledError`` if it was cancelled.
        """
        error = self.exception()
        if error is not None:
            raise error
        return self._result  # type: ignore[return-value]  # done without an error: it is set

    def exception(self) -> BaseException | None:
        """Return the error, or None if there is a result.

        Raises:
            CancelledError: it was cancelled.
        """
        assert self._is_done, "asked before it was done"
        if self._is_cancelled:
            raise asyncio.CancelledError
        return self._error

    def add_done_callback(self, callback: "Callable[[Pending[T]], object]") -> None:
        """Call ``callback`` when the ``Pending`` is done, or at once if it is done already."""
        self._callbacks.append(callback)
        if self._is_done:
            self._call_back()

    def set_result(self, result: T) -> None:
        """Set the result and run the callbacks."""
        assert not self._is_done, "done twice"
        self._is_done = True
        self._result = result
        self._call_back()

    def set_exception(self, error: BaseException) -> None:
        """Set the error and run the callbacks."""
        assert not self._is_done, "done twice"
        self._is_done = True
        self._error = error
        self._call_back()

    def cancel(self) -> bool:
        """Cancel the ``Pending``, because no code waits for it any more; return False if it was already done."""
        if self._is_done:
            return False
        self._is_done = self._is_cancelled = True
        self._call_back()
        return True

    def _call_back(self) -> None:
        """Run the callbacks. As with a future, their errors go to the loop's exception handler, not to the caller."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception as error:  # noqa: BLE001 - reported where those of a future's callbacks are
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a callback failed", "exception": error}
                )

    def __await__(self) -> Generator[object, None, T]:
        """Wait in a task for the result; cancelling the waiting task cancels the ``Pending``."""
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
    """Run ``work`` in a task and return its result as a ``Pending``. Cancelling the ``Pending`` cancels the task.

    ``tasks`` holds the task until its end, because the event loop has only a weak reference to it.
    """
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
            # The ``Pending`` was cancelled, so no code would see this error, which means a bug. The loop reports it.
            raise error

    def on_over(done: Pending[T]) -> None:
        if done.cancelled():
            task.cancel()

    task.add_done_callback(on_end)
    pending.add_done_callback(on_over)
    return pending


def mapped(source: Pending[S], convert: Callable[[Pending[S]], T]) -> Pending[T]:
    """Return a ``Pending`` for the result (or error) of ``convert``, which is called with ``source`` once it is done.

    Cancelling one of the two cancels the other.
    """
    pending: Pending[T] = Pending()

    def on_done(done: Pending[S]) -> None:
        if pending.done():
            return
        if done.cancelled():
            pending.cancel()
            return
        try:
            result = convert(done)
        except Exception as error:  # noqa: BLE001 - the waiting task has to hear of it
            pending.set_exception(error)
        else:
            pending.set_result(result)

    def on_over(done: Pending[T]) -> None:
        if done.cancelled():
            source.cancel()

    source.add_done_callback(on_done)
    pending.add_done_callback(on_over)
    return pending
