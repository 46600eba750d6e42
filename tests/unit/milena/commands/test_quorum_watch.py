"""Who waits for records is told that the quorum is lost, once, and that it is back, once."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from milena.cluster.admin import AdminClient
from milena.commands.consuming.quorum_watch import BACK, LOST, QUIET_MS, QuorumWatch
from milena.errors import NotNowError, UnreachableError
from tests.support.fakes.api import FakeApi
from tests.support.http.http_server import serving
from tests.support.time.fake_clock import FakeClock


class Reading:
    """Somebody who waits for records, and a quorum that answers as told."""

    def __init__(self):
        self.clock, self.said, self.asked = FakeClock(), [], 0
        self.answer = True
        self.watch = QuorumWatch(self._has_majority, self.said.append, self.clock)

    async def _has_majority(self):
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@asynccontextmanager
async def reading():
    found = Reading()
    task = asyncio.create_task(found.watch.run())
    await found.clock.settle()
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_loss_is_told_once_and_so_is_its_end():
    async with reading() as found:
        found.answer = False
        await found.clock.advance(QUIET_MS - 1)
        assert found.said == []
        await found.clock.advance(1)
        assert found.said == [LOST]
        await found.clock.advance(5 * QUIET_MS)
        assert found.said == [LOST]
        found.answer = True
        await found.clock.advance(QUIET_MS)
        assert found.said == [LOST, BACK]
        await found.clock.advance(5 * QUIET_MS)
        assert found.said == [LOST, BACK]
        found.answer = False
        await found.clock.advance(QUIET_MS)
        assert found.said == [LOST, BACK, LOST]


async def test_nobody_is_asked_while_records_come():
    async with reading() as found:
        found.answer = False
        for _ in range(10):
            found.watch.on_records()
            await found.clock.advance(QUIET_MS - 1)
        assert (found.asked, found.said) == (0, [])


async def test_the_end_is_told_also_when_records_came_before_it_was_noticed():
    async with reading() as found:
        found.answer = False
        await found.clock.advance(QUIET_MS)
        found.answer = True
        await found.clock.advance(QUIET_MS - 1)
        found.watch.on_records()
        await found.clock.advance(1)
        assert found.said == [LOST, BACK]


async def test_where_nobody_knows_nothing_is_said():
    async with reading() as found:
        found.answer = UnreachableError("no node answers")
        await found.clock.advance(3 * QUIET_MS)
        assert (found.asked, found.said) == (3, [])
        found.answer = False
        await found.clock.advance(QUIET_MS)
        found.answer = UnreachableError("no node answers")
        await found.clock.advance(QUIET_MS)
        assert found.said == [LOST]


async def test_a_node_says_whether_there_is_a_majority():
    fake = FakeApi()
    async with serving(fake.app()) as url, AdminClient(url) as client:
        assert await client.has_majority()
        fake.answer = (503, {"error_code": 50305, "message": "no majority"})
        assert not await client.has_majority()
        fake.answer = (503, {"error_code": 50301, "message": "not ready"})
        with pytest.raises(NotNowError):
            await client.has_majority()
