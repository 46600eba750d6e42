"""Lose responses of a node's quorum. The node calls this object, which calls the real quorum.

A network fault or a change of leader can lose a response. This object does so as often as a run requests, on a node
that otherwise works. It does nothing that ``Quorum.propose`` does not permit.
"""

import asyncio
import contextlib
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from milena.model.errors import FateUnknownError, MilenaError, NoQuorumError

if TYPE_CHECKING:
    from raft_meta.consensus.raft_quorum import RaftQuorum

FATES = ("told", "refused", "lost", "late", "vanished")
"""The fates of a proposal, in this order:

normal; never applied, and reported so; applied, and not reported; reported as unknown, then applied; neither applied
nor reported.
"""
ANSWER_S = 0.05
"""The time in s until the caller gets the error that the response is lost."""
LATE_S = 3.0
"""The longest delay in s after that until a late proposal is sent."""


class LostAnswers:
    """Decides the fates of the next proposals of one process; ``fates`` has them in order."""

    def __init__(self, quorum: "RaftQuorum", rng: Random, counts: Counter[str]) -> None:
        self.fates: list[str] = []
        self._propose = quorum.propose
        self._rng = rng
        self._counts = counts
        self._late: set[asyncio.Task[None]] = set()
        quorum.propose = self.propose  # type: ignore[method-assign]

    async def propose(self, command: bytes, *, timeout_ms: int) -> bytes:
        """Propose like ``Quorum.propose``, and apply the next fate."""
        fate = self.fates.pop(0) if self.fates else "told"
        if fate == "told":
            return await self._propose(command, timeout_ms=timeout_ms)
        self._counts[fate] += 1
        if fate == "refused":
            raise NoQuorumError("no majority; the command was not applied")
        if fate == "vanished":
            await asyncio.sleep(timeout_ms / 1000)
            raise FateUnknownError("no answer in time")
        if fate == "lost":
            await self._propose(command, timeout_ms=timeout_ms)
        else:
            late = asyncio.get_running_loop().create_task(self._propose_late(command, timeout_ms))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
        await asyncio.sleep(min(timeout_ms / 1000, ANSWER_S))
        raise FateUnknownError("the answer got lost")

    async def _propose_late(self, command: bytes, timeout_ms: int) -> None:
        await asyncio.sleep(self._rng.uniform(0, LATE_S))
        with contextlib.suppress(MilenaError):
            await self._propose(command, timeout_ms=timeout_ms)
