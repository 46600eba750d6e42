"""Many changes in one command: what shares a command, what ends a wait, and what a stop refuses."""

import asyncio
from collections.abc import Sequence

import pytest

from milena.model.contained import ContainedErrors
from milena.model.errors import DrainingError, InternalError, MilenaError, NoQuorumError
from node.metadata.batched_proposals import BatchedProposals
from tests.support.time.virtual_time import settle, virtual


class Quorum:
    """Answers each command when the test says so. Changes are texts; those that begin with "bad" are refused."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None
        self.contained = ContainedErrors()
        self.queue = BatchedProposals[str](
            propose=self.propose,
            size_of=len,
            changes_max=3,
            bytes_max=10,
            contained=self.contained,
            task="test",
        )

    async def propose(self, changes: Sequence[str]) -> list[MilenaError | None]:
        self.commands.append(list(changes))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [NoQuorumError(one) if one.startswith("bad") else None for one in changes]

    async def add(self, *changes: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.queue.add(one)) for one in changes]
        await settle()
        return tasks


async def outcomes(tasks: list[asyncio.Task[None]]) -> list[BaseException | None]:
    return await asyncio.gather(*tasks, return_exceptions=True)


@virtual
async def test_changes_that_gather_during_a_command_share_the_next_ones() -> None:
    quorum = Quorum()
    tasks = await quorum.add("a")
    tasks += await quorum.add("b", "c", "d", "e")
    assert (quorum.commands, len(quorum.queue), quorum.queue.queued_bytes) == ([["a"]], 4, 4)
    quorum.gate.set()
    assert await outcomes(tasks) == [None] * 5
    assert quorum.commands == [["a"], ["b", "c", "d"], ["e"]]
    assert (len(quorum.queue), quorum.queue.queued_bytes) == (0, 0)


@virtual
async def test_a_command_has_a_bounded_size_and_at_least_one_change() -> None:
    quorum = Quorum()
    tasks = await quorum.add("a", "x" * 8, "y" * 4, "z" * 50)
    quorum.gate.set()
    await outcomes(tasks)
    assert quorum.commands == [["a", "x" * 8], ["y" * 4], ["z" * 50]]


@virtual
async def test_a_refusal_is_of_one_change_alone() -> None:
    quorum = Quorum()
    tasks = await quorum.add("a")
    tasks += await quorum.add("bad", "c")
    quorum.gate.set()
    first, second, third = await outcomes(tasks)
    assert (first, third) == (None, None)
    assert isinstance(second, NoQuorumError)


@pytest.mark.parametrize(
    ("error", "kind"), [(NoQuorumError("none"), NoQuorumError), (KeyError("x"), InternalError)]
)
@virtual
async def test_an_error_of_a_command_is_told_to_all_in_it_and_the_next_ones_are_served(
    error: Exception, kind: type[MilenaError]
) -> None:
    quorum = Quorum()
    tasks = await quorum.add("a")
    quorum.error = error
    quorum.gate.set()
    (told,) = await outcomes(tasks)
    assert isinstance(told, kind)
    quorum.error = None
    assert await outcomes(await quorum.add("b")) == [None]


@virtual
async def test_a_caller_that_is_gone_stops_no_other() -> None:
    quorum = Quorum()
    gone, stays = await quorum.add("a", "b")
    gone.cancel()
    await settle()
    quorum.gate.set()
    assert await outcomes([stays]) == [None]


@virtual
async def test_a_stop_refuses_what_waits_and_what_comes_and_waits_for_the_command_under_way() -> (
    None
):
    quorum = Quorum()
    tasks = await quorum.add("a")
    tasks += await quorum.add("b")
    stopping = asyncio.create_task(quorum.queue.close(lambda: DrainingError("stopping")))
    await settle()
    assert not stopping.done()
    (late,) = await outcomes(await quorum.add("c"))
    assert isinstance(late, DrainingError)
    quorum.gate.set()
    await stopping
    first, second = await outcomes(tasks)
    assert first is None
    assert isinstance(second, DrainingError)
    assert quorum.commands == [["a"]]
