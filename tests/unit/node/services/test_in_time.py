"""Rules of the client's timeout: a block that takes longer is cancelled, and ends in the error that was named."""

import asyncio

import pytest

from milena.model.errors import FateUnknownError, NoQuorumError
from node.services.in_time import in_time, nothing, unknown
from tests.support.time.virtual_time import after, virtual


@virtual
async def test_a_block_that_takes_longer_is_cancelled_and_ends_in_the_named_error() -> None:
    loop = asyncio.get_running_loop()
    waited: asyncio.Future[None] = loop.create_future()
    with pytest.raises(NoQuorumError, match="within the timeout; nothing was written"):
        async with in_time(500, nothing("written")):
            await waited
    assert waited.cancelled()
    with pytest.raises(FateUnknownError, match="within the timeout; it may be deleted"):
        async with in_time(-1, unknown("it may be deleted")):
            await after(1)


@virtual
async def test_a_block_that_is_done_in_time_keeps_its_result_and_its_error() -> None:
    async with in_time(500, nothing("written")):
        await after(100)
    with pytest.raises(ValueError, match="its own"):
        async with in_time(500, nothing("written")):
            raise ValueError("its own")


@virtual
async def test_a_timeout_that_the_block_raises_itself_keeps_its_meaning() -> None:
    with pytest.raises(TimeoutError, match="connection"):
        async with in_time(1_000, nothing("written")):
            raise TimeoutError("a connection")
