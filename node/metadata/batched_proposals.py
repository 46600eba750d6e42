"""Sends many small changes to the quorum in one command, with one command in flight at a time.

While a command is in flight, the next changes gather. So the number of commands follows the speed of the quorum, and
not the number of callers.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from milena.model.contained import ContainedErrors, EntryPoint
from milena.model.errors import MilenaError

Change = TypeVar("Change")


@dataclass(slots=True)
class _WaitingChange(Generic[Change]):
    change: Change
    size: int
    done: asyncio.Future[None]


@dataclass(eq=False, kw_only=True)
class BatchedProposals(Generic[Change]):
    """A queue of changes of one kind. Owned by the data loop.

    Invariant: a task runs exactly while there are changes in the queue or in flight.
    """

    propose: Callable[[Sequence[Change]], Awaitable[Sequence[MilenaError | None]]]
    """Sends changes in one command; returns for each None, or why it was refused. An error that it raises is the
    outcome of all of them."""
    size_of: Callable[[Change], int]
    """Returns the estimated size of a change in bytes."""
    changes_max: int
    """The most changes in a command."""
    bytes_max: int
    """The most bytes in a command of several changes, by ``size_of``."""
    contained: ContainedErrors
    """Reports an error of ``propose`` that is no ``MilenaError``, under the name ``task``."""
    task: str

    def __post_init__(self) -> None:
        self._queue: deque[_WaitingChange[Change]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._refusal: Callable[[], MilenaError] | None = None
        self.queued_bytes = 0

    def __len__(self) -> int:
        """Return the number of changes that wait for the next command."""
        return len(self._queue)

    async def add(self, change: Change) -> None:
        """Send a change, and wait for its outcome. The caller has checked that the queue is not too long.

        Raises:
            MilenaError: the change was refused, or its fate is unknown.
        """
        if self._refusal is not None:
            raise self._refusal()
        waiting = _WaitingChange(
            change, self.size_of(change), asyncio.get_running_loop().create_future()
        )
        self._queue.append(waiting)
        self.queued_bytes += waiting.size
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        await waiting.done

    async def _run(self) -> None:
        while self._queue:
            taken = self._take()
            outcomes: Sequence[MilenaError | None]
            try:
                outcomes = await self.propose([waiting.change for waiting in taken])
            except Exception as error:  # noqa: BLE001 - those who wait hear of it, and the next ones are served
                outcomes = [self._typed(error)] * len(taken)
            for waiting, outcome in zip(taken, outcomes, strict=True):
                _settle(waiting, outcome)
        # Set it here, not in a callback of this task: before that runs, a caller may add the next change.
        self._task = None

    def _typed(self, error: Exception) -> MilenaError:
        if isinstance(error, MilenaError):
            return error
        return self.contained.report(EntryPoint.TASK, error, "task", self.task)

    def _take(self) -> list[_WaitingChange[Change]]:
        taken: list[_WaitingChange[Change]] = []
        size = 0
        while self._queue and len(taken) < self.changes_max:
            size += self._queue[0].size
            if taken and size > self.bytes_max:
                break
            taken.append(self._queue.popleft())
        self.queued_bytes -= sum(waiting.size for waiting in taken)
        return taken

    async def close(self, refusal: Callable[[], MilenaError]) -> None:
        """Refuse the changes that wait and those that come, and wait for the command in flight."""
        self._refusal = refusal
        while self._queue:
            _settle(self._queue.popleft(), refusal())
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


def _settle(waiting: _WaitingChange[Change], error: MilenaError | None) -> None:
    if waiting.done.done():
        return
    if error is None:
        waiting.done.set_result(None)
    else:
        waiting.done.set_exception(error)
