"""Three voters as processes on a real disk, killed again and again while they work.

Every acknowledged command must be in every node's log, at the index that was told, once.
"""

import asyncio
import os
import random
import socket
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROUNDS = 5
DEADLINE_S = 400
"""Some seconds, where nothing else runs."""
ROOT = Path(__file__).parent.parent.parent


class Voter:
    """A process that comes and goes; its listening socket, its directory and what it said stay."""

    def __init__(self, node_id: int, root: Path) -> None:
        self.node_id = node_id
        self.directory = root / str(node_id)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.incarnation = 0
        self.lines: list[str] = []
        self.leads = asyncio.Event()
        self.process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, addresses: list[str]) -> None:
        self.incarnation += 1
        self.leads.clear()
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.clusters.quorum_process",
            str(self.node_id),
            str(self.listening.fileno()),
            str(self.directory),
            str(self.incarnation),
            *addresses,
            pass_fds=[self.listening.fileno()],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
            cwd=ROOT,
        )
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            text = line.decode().rstrip("\n")
            if line.endswith(b"\n"):
                self.lines.append(text)
            if text == "leader":
                self.leads.set()

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.ended()

    async def ended(self) -> None:
        assert self.process is not None
        assert self._reading is not None
        await self.process.wait()
        await self._reading
        # Lets the transport of the process close its pipes.
        await asyncio.sleep(0)

    async def finish(self) -> dict[str, int]:
        """End its work; returns its log as command → index."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(b"stop\n")
        # Not the last line for long, if the voter comes to lead after it.
        while not (logs := [line for line in self.lines if line.startswith("log")]):
            await asyncio.sleep(0.02)
        words = logs[0].split()
        pairs = [word.partition(":") for word in words[1:]]
        log = {command: int(index) for index, _, command in pairs}
        assert len(log) == len(pairs), "a command is in the log twice"
        return log

    async def stop(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(b"stop\n")
        await self.ended()
        assert self.process.returncode == 0

    async def close(self) -> None:
        """Leave nothing behind, however the test went."""
        if self.process is not None and self.process.returncode is None:
            await self.kill()
        self.listening.close()

    def acknowledged(self) -> dict[str, int]:
        acks = [line.split() for line in self.lines if line.startswith("ack ")]
        return {command: int(index) for _, index, command in acks}


async def wait_for_more(voters: list[Voter], count: int) -> None:
    start = sum(len(voter.lines) for voter in voters)
    while sum(len(voter.lines) for voter in voters) < start + count:
        await asyncio.sleep(0.02)


async def kill_again_and_again(voters: list[Voter]) -> list[dict[str, int]]:
    """The log of each in the end."""
    rng = random.Random(os.getpid())
    addresses = [f"{v.node_id}=127.0.0.1:{v.listening.getsockname()[1]}" for v in voters]
    async with asyncio.timeout(DEADLINE_S):
        for voter in voters:
            await voter.start(addresses)
        for number in range(ROUNDS):
            await wait_for_more(voters, 200)
            leaders = [voter for voter in voters if voter.leads.is_set()]
            victims = voters if number == ROUNDS - 1 else [rng.choice(leaders or voters)]
            for victim in victims:
                await victim.kill()
            for victim in victims:
                await victim.start(addresses)
        await wait_for_more(voters, 200)
        logs = await asyncio.gather(*(voter.finish() for voter in voters))
        await asyncio.gather(*(voter.stop() for voter in voters))
    return logs


async def test_acknowledged_commands_survive_kills(tmp_path: Path) -> None:
    voters = [Voter(node_id, tmp_path) for node_id in (1, 2, 3)]
    try:
        logs = await kill_again_and_again(voters)
    finally:
        for voter in voters:
            await voter.close()
    longest = max(logs, key=len)
    for log in logs:
        assert all(longest[command] == index for command, index in log.items())
    acknowledged = {c: i for voter in voters for c, i in voter.acknowledged().items()}
    assert len(acknowledged) > 200 * ROUNDS
    assert {c: longest.get(c) for c in acknowledged} == acknowledged
