"""Members of a classic group that join at the same time, over one connection each.

Real clients notice a rebalance with their next heartbeat, which is seconds away. These members send one every 20 ms. So
the time until all have their assignment is mostly that of the group's coordinator.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from loadtest.bench.clients import kafka_wire as wire
from loadtest.bench.clients.http_load import HttpLoadError, host_and_port

HEARTBEAT_S = 0.02
PATIENCE_S = 60.0
"""How long all members may take together."""
_SESSION_MS = 30_000
_PROTOCOL, _PROTOCOL_TYPE = "range", "consumer"
_ASSIGNMENT = b"assigned"
NONE, LOADING, NOT_COORDINATOR, BAD_GENERATION, UNKNOWN_MEMBER, REBALANCING = 0, 14, 16, 22, 25, 27
_AGAIN = frozenset({LOADING, NOT_COORDINATOR, BAD_GENERATION, UNKNOWN_MEMBER, REBALANCING})


@dataclass(slots=True)
class _JoiningGroup:
    """The state that all members share. ``stable``: the generation in which all of them are; 0: none yet."""

    name: str
    size: int
    stable: int = 0


class _JoiningMember:
    def __init__(
        self, group: _JoiningGroup, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._group = group
        self._reader = reader
        self._writer = writer
        self._id = ""

    async def _ask(self, key: int, version: int, body: bytes) -> wire.KafkaFields:
        self._writer.write(wire.frame(key, version, wire.text(self._group.name) + body))
        size = await self._reader.readexactly(4)
        return wire.KafkaFields(size + await self._reader.readexactly(int.from_bytes(size, "big")))

    async def settle(self) -> None:
        """Join, and follow rebalances until all members have their assignment in one generation."""
        while not await self._round():
            pass

    async def _round(self) -> bool:
        generation = await self._join()
        code = NONE if generation else REBALANCING
        while code == NONE:
            if self._group.stable == generation:
                return True
            await asyncio.sleep(HEARTBEAT_S)
            beat = await self._ask(12, 0, wire.int32(generation) + wire.text(self._id))
            code = beat.int16()
        _check(code)
        return False

    async def _join(self) -> int:
        """Join, and take the assignment; return the generation, or 0 if the group went on without this member."""
        joined = await self._ask(
            11,
            1,
            wire.int32(_SESSION_MS)
            + wire.int32(_SESSION_MS)
            + wire.text(self._id)
            + wire.text(_PROTOCOL_TYPE)
            + wire.int32(1)
            + wire.text(_PROTOCOL)
            + wire.data(b""),
        )
        code, generation = joined.int16(), joined.int32()
        _check(code)
        if code:
            self._id = "" if code == UNKNOWN_MEMBER else self._id
            if code in (LOADING, NOT_COORDINATOR):
                await asyncio.sleep(HEARTBEAT_S)
            return 0
        joined.text()
        leader, self._id = joined.text(), joined.text()
        members = []
        for _ in range(joined.int32()):
            members.append(joined.text())
            joined.data()
        rows = b"".join(wire.text(member) + wire.data(_ASSIGNMENT) for member in members)
        count = len(members) if leader == self._id else 0
        synced = await self._ask(
            14, 0, wire.int32(generation) + wire.text(self._id) + wire.int32(count) + rows
        )
        code = synced.int16()
        _check(code)
        if code:
            return 0
        if synced.data() != _ASSIGNMENT:
            raise HttpLoadError("a member got another assignment than the leader sent")
        if count == self._group.size:
            self._group.stable = generation
        return generation

    async def leave(self) -> None:
        """Leave the group, and close the connection."""
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._ask(13, 0, wire.text(self._id))
        self._writer.close()


def _check(code: int) -> None:
    if code and code not in _AGAIN:
        raise HttpLoadError(f"a member of a group got the error code {code}")


async def join_group(address: str, name: str, size: int) -> float:
    """Let members join a new group; return the seconds from the first request until all have their assignment."""
    place = host_and_port(address)
    return await join_over(name, [await asyncio.open_connection(*place) for _ in range(size)])


async def join_over(
    name: str, connections: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
) -> float:
    """Let a member join over each connection, and leave at the end; return the seconds as ``join_group`` does."""
    group = _JoiningGroup(name, len(connections))
    members = [_JoiningMember(group, reader, writer) for reader, writer in connections]
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            for member in members:
                tasks.create_task(member.settle())
        return loop.time() - began_s
    except TimeoutError:
        raise HttpLoadError(
            f"members of a group: not all have their assignment after {PATIENCE_S:g} s"
        ) from None
    except ExceptionGroup as failed:
        raise HttpLoadError(f"members of a group: {failed.exceptions[0]!r}") from failed
    finally:
        await asyncio.gather(*(member.leave() for member in members))
