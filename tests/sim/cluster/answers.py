"""A quorum that does not say what becomes of what it is asked: stands before a node's own, which is the real one.

What a network and a change of leader do to an answer now and then, as often as a run wants it, to a node that is
otherwise well. Nothing happens that ``Quorum.propose`` does not allow for.
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
"""Of a proposal: as ever; never applied, and said so; applied, but not told; told to be unknown, then applied; neither
applied nor answered."""
ANSWER_S = 0.05
"""Until a caller is told that an answer got lost."""
LATE_S = 3.0
"""After that, at most, a late proposal is on its way."""


class LostAnswers:
    """Decides over the next proposals of one process: ``fates``, the first one first."""

    def __init__(self, quorum: "RaftQuorum", rng: Random, counts: Counter[str]) -> None:
        self.fates: list[str] = []
        self._propose = quorum.propose
        self._rng = rng
        self._counts = counts
        self._late: set[asyncio.Task[None]] = set()
        quorum.propose = self.propose  # type: ignore[method-assign]

    async def propose(self, command: bytes, *, timeout_ms: int) -> bytes:
        """In the place of ``Quorum.propose``."""
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
