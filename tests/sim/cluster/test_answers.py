"""The fates of proposals whose responses are lost."""

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from milena.model.errors import FateUnknownError, NoQuorumError
from tests.sim.cluster.answers import ANSWER_S, LATE_S, LostAnswers
from tests.support.time.virtual_time import virtual

TIMEOUT_MS = 1_000


class Applied:
    """A quorum that applies a command at once."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []

    async def propose(self, command: bytes, *, timeout_ms: int) -> bytes:
        del timeout_ms
        self.commands.append(command)
        return b"done"


def lossy(*fates: str) -> tuple[Any, LostAnswers]:
    quorum: Any = Applied()
    answers = LostAnswers(quorum, Random(1), Counter())
    answers.fates += fates
    return quorum, answers


@virtual
async def test_as_ever_when_nothing_is_said() -> None:
    quorum, answers = lossy("told")
    assert await quorum.propose(b"a", timeout_ms=TIMEOUT_MS) == b"done"
    assert await quorum.propose(b"b", timeout_ms=TIMEOUT_MS) == b"done"
    assert quorum.commands == [b"a", b"b"]
    assert not answers._counts


@virtual
async def test_refused_and_vanished_are_never_applied() -> None:
    quorum, answers = lossy("refused", "vanished")
    with pytest.raises(NoQuorumError):
        await quorum.propose(b"a", timeout_ms=TIMEOUT_MS)
    began = asyncio.get_running_loop().time()
    with pytest.raises(FateUnknownError):
        await quorum.propose(b"b", timeout_ms=TIMEOUT_MS)
    assert asyncio.get_running_loop().time() - began == TIMEOUT_MS / 1000
    await asyncio.sleep(2 * LATE_S)
    assert quorum.commands == []
    assert answers._counts == {"refused": 1, "vanished": 1}


@virtual
async def test_lost_is_applied_before_the_answer_and_late_after_it() -> None:
    quorum, _ = lossy("lost", "late")
    with pytest.raises(FateUnknownError):
        await quorum.propose(b"a", timeout_ms=TIMEOUT_MS)
    assert quorum.commands == [b"a"]
    with pytest.raises(FateUnknownError):
        await quorum.propose(b"b", timeout_ms=TIMEOUT_MS)
    assert quorum.commands == [b"a"]
    await asyncio.sleep(LATE_S - ANSWER_S)
    assert quorum.commands == [b"a", b"b"]
