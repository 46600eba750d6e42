"""Measure the end of a log ("tail") while other clients read old records that are not in the page cache.

Producers write small records with acks=all at a fixed rate, well below what the nodes can do, and a reader waits for
them at the end of the log. In turns they run alone; beside clients that fetch an old log of the same leader from its
start; and while a follower, whose copy acks=all waits for, catches up with another log of the same leader.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import perf_counter

import psutil

from loadtest.bench.clients.cold_readers import FETCH_BYTES, make_cold, segments_in
from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.clients.paced_load import PacedLoad
from loadtest.bench.measuring.rounds import WARM_UP_S, Turn, Watch
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import reading as reading_rows
from loadtest.bench.servers.subject import Subject, batch_ask, http_turn
from loadtest.bench.stages.produce import LARGE, SMALL
from loadtest.cluster.local_cluster import LocalNode
from milena.cluster.admin import AdminClient
from milena.errors import ClientError

OLD_BYTES = 192 << 20
"""Bytes of the log that is read, on one node, and of the log that a follower catches up with, on two.

With the data of the turns, the disk use stays below 1 GB.
"""
READERS = 4
_PRODUCERS = 32
_RATE = 300.0
"""Records per second of all producers together: a tenth of what three nodes on two cores can write.

A producer has one record in flight. So all producers together keep up until an acknowledgement takes a tenth of a
second.
"""
_RECORDS = FETCH_BYTES // 16 // LARGE
"""Records of 1 KB in a batch of 64 KB; a fetch has sixteen batches."""
_FILL_S = 0.2
_FILL_CLIENTS = 4
_POLL_S = 0.02
_PATIENCE_S = 60.0
_SETTLE_S = 0.5
_BEGUN_BYTES = 8 << 20
"""More than an empty log's file may have: the follower is catching up."""


Names = tuple[str, str]
"""The names under which a scene notes acknowledgements and deliveries."""
ALONE = (reading_rows.TAIL_ACK, reading_rows.TAIL_DELIVERY)
COLD = (reading_rows.COLD_ACK, reading_rows.COLD_DELIVERY)
BEHIND = (reading_rows.BEHIND_ACK, reading_rows.BEHIND_DELIVERY)


class _Stage:
    """The cluster, the roles of its nodes, and the load at the tail."""

    def __init__(self, plan: BenchPlan, subject: Subject, rounds: Rounds) -> None:
        self._plan = plan
        self._subject = subject
        self._rounds = rounds
        self._leader = self._follower = subject.nodes[0]
        self._old = Path()
        self._old_records = 0
        self._behind = 0
        self._load: PacedLoad | None = None
        self.is_counted = False

    async def prepare(self) -> None:
        """Place the topics, and fill the old log."""
        controller = await self._subject.controller_url()
        # Place the leader of the tail, and the follower that is stopped, on nodes that do not lead the quorum.
        others = [node for node in self._subject.nodes if node.url != controller]
        self._leader, self._follower = others
        (third,) = (node for node in self._subject.nodes if node not in others)
        await self._subject.place_topic("tail", self._leader, self._follower, third)
        self._old = self._leader.data_dir / await self._subject.place_topic("old", self._leader)
        self._old_records = await self._fill("old")
        make_cold(self._old)

    async def _fill(self, topic: str) -> int:
        """Write ``OLD_BYTES`` to a topic; return the number of records."""
        ask = batch_ask(self._leader.url, topic, records=_RECORDS, size=LARGE, acks="1")
        written = 0
        while written * LARGE < OLD_BYTES:
            turn = await http_turn(
                self._leader.url, ask, connections=_FILL_CLIENTS, seconds=_FILL_S
            )
            written += int(turn.units)
        return written

    async def load(self, stack: AsyncExitStack) -> None:
        """Start to write and to read at the tail."""
        self._load = await stack.enter_async_context(
            PacedLoad(self._leader.url, "tail", connections=_PRODUCERS, rate=_RATE, size=SMALL)
        )

    def scenes(self) -> list[tuple[Names, Callable[[float], Awaitable[None]]]]:
        """Return the three scenes in the order of the first round; each takes about the given seconds."""
        return [(ALONE, self._alone), (COLD, self._cold), (BEHIND, self._catch_up)]

    async def _alone(self, seconds: float) -> None:
        async with self._measured(ALONE):
            await asyncio.sleep(seconds)

    async def _cold(self, seconds: float) -> None:
        make_cold(self._old)
        readers = await self._start_readers()
        try:
            before = disk_bytes(self._leader)
            began_s = perf_counter()
            async with self._measured(COLD):
                await asyncio.sleep(seconds)
            output, _ = await readers.communicate(b"")
            took_s = perf_counter() - began_s
            read = int(output or 0)
            if not read:
                raise HttpLoadError("the readers of the old log were given nothing")
            cold = disk_bytes(self._leader) - before
            self._fact(
                "cold readers",
                f"{read / took_s / 1e6:,.0f} MB/s",
                f"{cold / read:.0%} from the disk",
            )
        finally:
            if readers.returncode is None:
                readers.kill()
                await readers.wait()

    async def _start_readers(self) -> Process:
        arguments = (self._leader.url, "old", str(self._old))
        numbers = map(str, (self._old_records, _RECORDS * 16, READERS))
        module = "loadtest.bench.clients.cold_readers"
        # Start a new session: if the system divides CPU time among sessions, the readers take none of ours.
        readers = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments, *numbers),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
        )
        assert readers.stdout is not None, "it is a pipe"
        if await readers.stdout.readline() != b"ready\n":
            raise HttpLoadError("the readers of the old log could not begin")
        return readers

    async def _catch_up(self, seconds: float) -> None:
        """Let a follower catch up, however long that takes."""
        del seconds
        if not self.is_counted:
            return
        self._behind += 1
        topic = f"behind-{self._behind}"
        folder = await self._subject.place_topic(topic, self._leader, self._follower)
        theirs = self._follower.data_dir / folder
        await self._wait(theirs.exists, "the follower does not follow")
        await self._follower.stop()
        total = await self._fill(topic) * LARGE
        make_cold(self._leader.data_dir / folder)
        self._follower.process.start()
        await self._wait(lambda: stored_bytes(theirs) > _BEGUN_BYTES, "the follower does not begin")
        began_s, begun = perf_counter(), stored_bytes(theirs)
        async with self._measured(BEHIND):
            await self._wait(lambda: stored_bytes(theirs) >= total, "the follower does not end")
        rate = (total - begun) / (perf_counter() - began_s)
        self._fact("follower", f"{rate / 1e6:,.0f} MB/s of {total / 1e6:,.0f} MB")
        await self._subject.wait_ready(self._follower)
        async with AdminClient(self._leader.url) as admin:
            await admin.delete_topic(topic)
        await self._wait(lambda: not theirs.exists(), "the follower keeps a deleted topic")

    async def _wait(self, is_so: Callable[[], bool], otherwise: str) -> None:
        """Check repeatedly until ``is_so`` returns true."""
        ends_s = perf_counter() + _PATIENCE_S
        while not is_so():
            if perf_counter() > ends_s:
                raise HttpLoadError(otherwise)
            await asyncio.sleep(_POLL_S)

    @asynccontextmanager
    async def _measured(self, names: Names) -> AsyncIterator[None]:
        """Note the latencies at the tail during the block."""
        load = self._load
        assert load is not None, "the load has started"
        load.forget()
        watch = Watch(self._subject.pids)
        began_s = perf_counter()
        yield
        seconds = perf_counter() - began_s
        watch.stop()
        measured = (load.acknowledged_s, load.delivered_s)
        load.check()
        if not self.is_counted:
            return
        for name, latencies_s in zip(names, measured, strict=True):
            if not latencies_s:
                raise HttpLoadError(f"{name}: none in {seconds:.1f} s")
            turn = Turn(latencies_s=latencies_s, units=len(latencies_s), seconds=seconds)
            self._rounds.note(name, watch.sample(turn))
        self._rounds.foreign_cpu = max(self._rounds.foreign_cpu, watch.foreign_cpu)

    def _fact(self, name: str, *figures: str) -> None:
        if self.is_counted:
            known = self._rounds.facts.get(name)
            self._rounds.facts[name] = "; ".join(filter(None, (known, ", ".join(figures))))


async def tail(plan: BenchPlan) -> Rounds:
    """Measure the three scenes in rounds."""
    rounds = Rounds()
    async with AsyncExitStack() as stack:
        subject = await stack.enter_async_context(Subject(plan.directory / "milena"))
        stage = _Stage(plan, subject, rounds)
        await stage.prepare()
        await stage.load(stack)
        for number in range(-1, plan.rounds):
            stage.is_counted = number >= 0
            scenes = stage.scenes()
            for names, turn in scenes if number % 2 == 0 else reversed(scenes):
                if names[0] not in rounds.failures:
                    try:
                        await turn(plan.seconds if number >= 0 else WARM_UP_S)
                    except (HttpLoadError, ClientError, OSError) as error:
                        rounds.failures |= {name: f"{name}: {error}" for name in names}
                await asyncio.sleep(_SETTLE_S)
            if number >= 0:
                plan.say(f"round {number + 1} of {plan.rounds}")
    return rounds


def stored_bytes(folder: Path) -> int:
    """Return the bytes of a partition's segments, including space that is allocated ahead."""
    return sum(path.stat().st_size for path in segments_in(folder))


def disk_bytes(node: LocalNode) -> int:
    """Return the bytes that a node has read from the disk so far."""
    return int(psutil.Process(node.process.pid).io_counters().read_bytes)
