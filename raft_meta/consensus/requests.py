"""Passes commands from a caller's event loop to the quorum's loop, in batches. Each command has exactly one outcome.

A request lives until its deadline. Some failures are definite: the command was not applied, because no leader is known,
the leader changed before it took the command, or the queue is full. After such a failure, this module retries until the
deadline. If the command left this node and no response came, its fate is *unknown*; it does not count as failed. If
the command never left the queue, it was certainly not applied.
"""

import asyncio
import contextlib
from collections import deque
from typing import Final

from milena.model.errors import FateUnknownError, MilenaError, NoQuorumError
from raft_meta.consensus.core import RaftCore
from raft_meta.consensus.driver import Driver, LoopThread
from raft_meta.consensus.library import Failure

_RETRY_SECONDS: Final = 0.02


class Request:
    """One proposal, or a barrier (``command`` is None). Created on the caller's loop, used on the quorum's loop."""

    __slots__ = ("command", "deadline", "future", "is_answered", "loop", "ticket", "timeout_ms")

    def __init__(self, command: bytes | None, timeout_ms: int) -> None:
        self.command = command
        self.timeout_ms = timeout_ms
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[bytes | int] = self.loop.create_future()
        self.ticket: int | None = None
        self.is_answered = False
        self.deadline: asyncio.TimerHandle | None = None


_Outcome = bytes | int | MilenaError


class Requests:
    """The requests of one node that do not have an outcome yet."""

    def __init__(self, thread: LoopThread, driver: Driver) -> None:
        self._thread = thread
        self._driver = driver
        self._arriving: deque[Request] = deque()
        self._is_waking = False
        self._open: dict[Request, None] = {}
        """The requests that the quorum's loop has taken, in order of arrival, so that a simulated run repeats."""
        self._answers: dict[asyncio.AbstractEventLoop, list[tuple[Request, _Outcome]]] = {}
        self._is_closed = False

    async def ask(self, request: Request) -> bytes | int:
        """Pass a request to the quorum and return its outcome. Call it on any loop.

        Raises:
            NoQuorumError: the command was certainly not applied.
            FateUnknownError: the command may have been applied.
        """
        self._arriving.append(request)
        if not self._is_waking:
            self._is_waking = True
            if not self._thread.call(self._take):
                raise NoQuorumError("this node's quorum has stopped")
        return await request.future

    # -- on the quorum's loop

    def _take(self) -> None:
        self._is_waking = False
        while self._arriving:
            request = self._arriving.popleft()
            seconds = request.timeout_ms / 1000
            request.deadline = self._thread.loop.call_later(seconds, self._expire, request)
            self._open[request] = None
            self._submit(request)
        self._driver.tick()
        self.deliver()

    def _submit(self, request: Request) -> None:
        if request.is_answered:
            return
        if self._is_closed:
            self._answer(request, NoQuorumError("this node's quorum has stopped"))
        elif self._driver.core is None:
            self._again(request)
        else:
            self._driver.do(lambda core: self._start(core, request))

    def _start(self, core: RaftCore, request: Request) -> None:
        command = request.command
        if command is None:
            request.ticket = core.barrier(
                lambda index, failure: self._on_result(request, index, failure)
            )
        else:
            request.ticket = core.propose(
                command, lambda response, failure: self._on_result(request, response, failure)
            )

    def _on_result(
        self, request: Request, result: bytes | int | None, failure: Failure | None
    ) -> None:
        request.ticket = None
        if request.is_answered:
            return
        if failure is None:
            assert result is not None, "a command that was applied has a response"
            self._answer(request, result)
        elif failure is Failure.REQUEST_DENIED:
            self._answer(request, NoQuorumError("the Raft leader's disk is full"))
        elif failure.is_definite:
            self._again(request)
        else:
            self._answer(
                request, FateUnknownError("the Raft leader changed: the command's fate is unknown")
            )

    def _again(self, request: Request) -> None:
        self._thread.loop.call_later(_RETRY_SECONDS, self._resubmit, request)

    def _resubmit(self, request: Request) -> None:
        self._submit(request)
        self._driver.kick()

    def _expire(self, request: Request) -> None:
        if request.is_answered:
            return
        within = f"within {request.timeout_ms} ms"
        if self._withdraw(request) and request.command is not None:
            self._answer(request, FateUnknownError(f"no majority answered {within}"))
        else:
            self._answer(
                request,
                NoQuorumError(
                    f"no majority of the metadata quorum answered {within}: start the nodes that are down"
                ),
            )
        self.deliver()

    def _withdraw(self, request: Request) -> bool:
        """Take a request back; return whether it has left this node already."""
        core, ticket = self._driver.core, request.ticket
        if ticket is None:
            return False
        if core is None:
            return True
        is_command = request.command is not None
        return not (core.withdraw(ticket) if is_command else core.withdraw_barrier(ticket))

    def _answer(self, request: Request, outcome: _Outcome) -> None:
        request.is_answered = True
        self._open.pop(request, None)
        if request.deadline is not None:
            request.deadline.cancel()
        self._answers.setdefault(request.loop, []).append((request, outcome))

    def deliver(self) -> None:
        """Deliver all new outcomes to their callers, with one wake-up for each loop."""
        if not self._answers:
            return
        answers, self._answers = self._answers, {}
        for loop, batch in answers.items():
            # If a caller's loop has closed, the caller does not wait any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, batch)

    def close(self) -> None:
        """End all open requests. If a command left this node, its fate is unknown."""
        self._is_closed = True
        for request in list(self._open):
            is_out = request.ticket is not None and request.command is not None
            self._answer(
                request,
                FateUnknownError("this node's quorum stopped: the command's fate is unknown")
                if is_out
                else NoQuorumError("this node's quorum has stopped"),
            )
        self._take()


def _settle(batch: list[tuple[Request, _Outcome]]) -> None:
    for request, outcome in batch:
        if request.future.done():
            continue
        if isinstance(outcome, MilenaError):
            request.future.set_exception(outcome)
        else:
            request.future.set_result(outcome)
