"""One run: nodes with the Kafka interface, clients of every kind, and what goes wrong with both."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

from node.groups import members as server_members
from raft_meta.machine import transactional_ids
from tests.sim.kafka.apps import COPY, SOURCE, Copier, GroupProcess, committed, fetch
from tests.sim.kafka.client import (
    Client,
    Place,
    RefusedError,
    RetriableError,
)
from tests.sim.kafka.cluster import KafkaCluster
from tests.sim.kafka.judge import Judge, Tried
from tests.sim.kafka.members import SESSION_MS
from tests.sim.kafka.producers import IdempotentProducer, TransactionalProcess, group_of
from tests.sim.kafka.wires import ClientNetwork, ConnectionLostError
from tests.support.time.virtual_time import run_virtual

PLACEMENTS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
SETTLE_MS = 180_000
"""Until all is copied and decided, from the last fault on. Transactions that are left open first run into timeouts."""
DAY_MS = 24 * 3_600_000
RIGHT_MS = 900
"""How far the clocks of a right majority may be apart."""
WRONG_MS = (60_000, -60_000, DAY_MS, -DAY_MS, 365 * DAY_MS)
LINES_MAX = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The parameters of a run besides its seed. ``seconds``: the virtual time with faults."""

    seconds: float = 12.0
    partitions: int = 2

    def command(self, seed: int) -> str:
        """Return the command that replays a run."""
        words = [f"python -m tests.sim.kafka --seed {seed}"]
        default = Options()
        words += [
            f"--{name} {getattr(self, name):g}"
            for name in ("seconds", "partitions")
            if getattr(self, name) != getattr(default, name)
        ]
        return " ".join(words)


class HangingError(Exception):
    """Something that must happen in the end has not happened. The judge has noted it."""


class KafkaWorld:
    """One run; see ``problems``."""

    def __init__(self, seed: int, options: Options | None = None) -> None:
        self.seed = seed
        self.options = options or Options()
        self.rng = rng = Random(seed)
        self.partitions = self.options.partitions
        self.judge = Judge()
        self.lines: list[str] = []
        self.network = ClientNetwork(Random(rng.random()))
        self.network.break_chance = rng.choice((0.0, 0.01, 0.04))
        self.network.delays_ms = rng.choice(((0.0, 1.0), (0.0, 1.0, 20.0), (1.0, 50.0, 400.0)))
        self.cluster = KafkaCluster(
            self.network,
            seed=seed,
            initial_delay_ms=rng.choice((0, 500)),
            preferred_interval_ms=rng.choice((10**9, 2_000)),
            has_one_address=rng.random() < 0.2,
        )
        self.places: list[Place] = [(topic, n) for topic in ("a", "b") for n in range(2)]
        self._wrong_clock = rng.choice((1, 2, 3))
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers: Counter[str] = Counter()
        # Two processes of "x" fence each other again and again.
        names = (("x", False), ("x", False), ("y", True), ("y", True), ("z", False), ("w", True))
        self.processes = [
            TransactionalProcess(self, name, is_tv2=is_tv2) for name, is_tv2 in rng.sample(names, 3)
        ]
        self.sources = [
            IdempotentProducer(self, f"s{n}{at}", (SOURCE, n))
            for n in range(self.partitions)
            for at in range(1 + (n == 0))
        ]
        self.writers: list[TransactionalProcess | IdempotentProducer] = [
            *self.processes,
            *self.sources,
        ]
        self.groups: list[GroupProcess] = [*self._copiers(), *self._readers()]

    def _copiers(self) -> list[GroupProcess]:
        is_classic = self.rng.random() < 0.5
        return [
            Copier(
                self, f"c{n}", "copiers", is_classic=is_classic, is_static=n == 0, is_tv2=self.rng.random() < 0.5,
            )
            for n in range(2)
        ]  # fmt: skip

    def _readers(self) -> list[GroupProcess]:
        return [
            GroupProcess(
                self, f"{group}{n}", group, is_classic=group == "classic", is_static=n == 0
            )
            for group in ("classic", "server")
            for n in range(2)
        ]

    @property
    def problems(self) -> list[str]:
        """The problems that were found."""
        return self.judge.problems

    def note(self, line: str) -> None:
        """Add a line to the report of the run."""
        if len(self.lines) < LINES_MAX:
            self.lines.append(f"{asyncio.get_running_loop().time():9.3f} {line}")

    def next_of(self, name: str) -> Tried:
        """Note that another transaction of a name begins."""
        self._numbers[name] += 1
        tried = Tried(name, self._numbers[name])
        self.judge.tried.append(tried)
        return tried

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Let work go on by itself; the run ends after it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def look(self) -> None:
        """Show the newest image to the judge."""
        if self.cluster.nodes:
            self.judge.on_image(self.cluster.image)

    # -- the run ---------------------------------------------------------------------------------

    async def run(self) -> "KafkaWorld":
        """Run clients and faults, wait until all is decided, and judge."""
        # Members by KIP-848 do not say how long their sessions last; nodes have one time for all.
        with patch.object(server_members, "SESSION_MS", SESSION_MS):
            await self._run()
        return self

    async def _run(self) -> None:
        cluster = self.cluster
        self.judge.now_s = asyncio.get_running_loop().time
        await cluster.start()
        await cluster.until(lambda: cluster.image.feature_level >= transactional_ids.LEVEL)
        for topic, count in (
            ("a", 2),
            ("b", 2),
            (SOURCE, self.partitions),
            (COPY, self.partitions),
        ):
            await cluster.create(topic, *[PLACEMENTS[n % 3] for n in range(count)])
        await cluster.until(
            lambda: all(broker.kafka_addresses for broker in cluster.image.brokers.values())
        )
        writing = [asyncio.create_task(one.run()) for one in self.writers]
        grouped = [asyncio.create_task(one.run()) for one in self.groups]
        watching = [asyncio.create_task(self._watch()), asyncio.create_task(self._read_on())]
        await self._strike()
        self.note("healed")
        for one in self.groups:
            one.is_calm = True
        for writer in self.writers:
            writer.is_over = True
        self.network.break_chance = 0.0
        self.network.delays_ms = (0.0, 1.0)
        await self._settle(writing, grouped, watching)

    async def _settle(
        self,
        writing: list[asyncio.Task[None]],
        grouped: list[asyncio.Task[None]],
        watching: list[asyncio.Task[None]],
    ) -> None:
        cluster = self.cluster
        await self._until(lambda: all(task.done() for task in writing), "writers do not end")
        await asyncio.gather(*writing)
        await self._until(lambda: not self._tasks, "late requests do not end")
        await self._until(self._is_copied, "not all is copied and read")
        for one in self.groups:
            one.is_over = True
        await self._until(lambda: all(task.done() for task in grouped), "members do not end")
        await asyncio.gather(*grouped)
        await self._until(self._is_decided, "transactions hang")
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        self.look()
        await self._judge()
        await cluster.close()

    async def _until(self, condition: Any, what: str) -> None:
        try:
            await self.cluster.until(condition, SETTLE_MS)
        except AssertionError as error:
            self.judge.broken(f"liveness: {what}: {self._state()}")
            raise HangingError from error

    def _state(self) -> str:
        image = self.cluster.image
        ids = {row.name: row for row in image.transactional_ids.values() if row.is_open}
        owned = {one.name: sorted(one.member.owned) for one in self.groups}
        offsets = {
            (group, key[1]): row.offset
            for group, rows in image.offsets.items()
            for key, row in rows.items()
        }
        return f"open {ids}, owned {owned}, offsets {offsets}, ends {self._source_ends()}, ending {image.ending}"

    async def _watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0.05)

    async def _read_on(self) -> None:
        """Read committed records all the time: they must all be there at the end, in this order."""
        client = Client(self, "reader")
        at: dict[Place, int] = {}
        counts: Counter[Place] = Counter()
        places = [*self.places, *((COPY, n) for n in range(self.partitions))]
        while True:
            await asyncio.sleep(self.rng.uniform(0.1, 0.5))
            place = self.rng.choice(places)
            try:
                found = await fetch(client, place, at.get(place, 0))
            except (ConnectionLostError, RetriableError, RefusedError):
                client.forget()
                continue
            self.judge.on_read(place, counts[place], found.values)
            counts[place] += len(found.values)
            at[place] = found.next_offset

    # -- faults ----------------------------------------------------------------------------------

    async def _strike(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.options.seconds
        gap_s = self.rng.choice((1.0, 2.5))
        kinds = self.rng.sample(
            (self._kill, self._isolate, self._stop, self._set_clock, self._cut_clients), 3
        )
        while loop.time() < end:
            await asyncio.sleep(self.rng.uniform(0.3, 2) * gap_s)
            await self.rng.choice((*kinds, self._kill))(self.rng.choice((1, 2, 3)))

    async def _kill(self, node_id: int) -> None:
        power = self.rng.random() < 0.3
        self.note(f"kill {node_id} power={power}")
        await self.cluster.kill(node_id, power=power)
        await asyncio.sleep(self.rng.uniform(0.3, 4))
        await self.cluster.restart(node_id)

    async def _stop(self, node_id: int) -> None:
        self.note(f"stop {node_id}")
        await self.cluster.stop_gracefully(node_id)
        await asyncio.sleep(self.rng.uniform(0.1, 1))
        await self.cluster.restart(node_id)

    async def _isolate(self, node_id: int) -> None:
        """Cut a node off from the others; clients reach it, or not."""
        self.note(f"isolate {node_id}")
        self.cluster.isolate(node_id)
        if self.rng.random() < 0.3:
            self.network.unreachable.add(node_id)
        await asyncio.sleep(self.rng.uniform(0.5, 5))
        self.network.unreachable.clear()
        self.cluster.heal()

    async def _cut_clients(self, node_id: int) -> None:
        self.note(f"no client reaches {node_id}")
        self.network.unreachable.add(node_id)
        await asyncio.sleep(self.rng.uniform(0.2, 4))
        self.network.unreachable.clear()

    async def _set_clock(self, node_id: int) -> None:
        """Let a clock jump: one of them far, the others within the bound of right ones."""
        is_wrong = node_id == self._wrong_clock
        skew = self.rng.choice(WRONG_MS) if is_wrong else self.rng.randint(-RIGHT_MS, RIGHT_MS)
        self.note(f"clock of {node_id} off by {skew}")
        self.cluster.skews_ms[node_id] = skew
        self.cluster.nodes[node_id].machine_clock.skew_ms = skew

    # -- the end ---------------------------------------------------------------------------------

    def _source_ends(self) -> dict[int, int]:
        image = self.cluster.image
        topic_id = image.topic_ids[SOURCE]
        ends = {}
        for number in range(self.partitions):
            state = image.partitions[topic_id, number]
            node = None if state.leader is None else self.cluster.nodes.get(state.leader)
            runner = None if node is None else node.replicas.find(topic_id, number)
            ends[number] = -1 if runner is None else runner.high_watermark
        return ends

    def _is_copied(self) -> bool:
        image = self.cluster.image
        topic_id = image.topic_ids[SOURCE]
        for group in ("copiers", "classic", "server"):
            offsets = image.offsets.get(group)
            for number, end in self._source_ends().items():
                found = None if offsets is None else offsets.get((topic_id, number))
                if end and (found is None or found.offset != end):
                    return False
        return True

    def _is_decided(self) -> bool:
        image = self.cluster.image
        return (
            not image.ending
            and not image.staging
            and not any(row.is_open for row in image.transactional_ids.values())
            and not any(
                runner.log.writers.transactions.open
                for node in self.cluster.nodes.values()
                for runner in node.replicas
            )
        )

    async def _judge(self) -> None:
        client = Client(self, "judge")
        numbers = range(self.partitions)
        places = [*self.places, *((topic, n) for topic in (SOURCE, COPY) for n in numbers)]
        logs = {place: await self._whole(client, place) for place in places}
        self.judge.judge_logs(logs)
        for number in numbers:
            self.judge.judge_copy(logs[SOURCE, number], logs[COPY, number], number)
        for source in self.sources:
            self.judge.judge_sequence(
                source.place, source.name, source.acknowledged, logs[source.place]
            )
        await self._judge_offsets(client, logs[self.places[0]])

    async def _whole(self, client: Client, place: Place) -> list[str]:
        values: list[str] = []
        at = 0
        while True:
            start = at

            async def attempt(at: int = start) -> Any:
                return await fetch(client, place, at)

            found = await client.until_answered(attempt)
            if found.next_offset == at:
                return values
            values += found.values
            at = found.next_offset

    async def _judge_offsets(self, client: Client, log: list[str]) -> None:
        """Compare the offsets of groups with the last transaction of the log to which each transaction writes."""
        key = (self.cluster.image.topic_ids["a"], 0)
        for name in sorted({process.name for process in self.processes}):
            last = max((int(v.split(":")[1]) for v in log if v.startswith(f"{name}:")), default=0)
            offsets = self.cluster.image.offsets.get(group_of(name))
            found = None if offsets is None else offsets.get(key)
            offset = 0 if found is None else found.offset
            if offset != last:
                self.judge.broken(f"{name}: offset {offset}, and the last transaction is {last}")
        for number in range(self.partitions):

            async def attempt(number: int = number) -> int:
                return await committed(client, "copiers", number, is_stable=True)

            told = await client.until_answered(attempt)
            offsets = self.cluster.image.offsets.get("copiers")
            key = (self.cluster.image.topic_ids[SOURCE], number)
            known = 0 if offsets is None or key not in offsets else offsets[key].offset
            if told != known:
                self.judge.broken(
                    f"copiers are told of offset {told} of {number}, and it is {known}"
                )


def run_world(
    seed: int, options: Options | None = None, world: KafkaWorld | None = None
) -> KafkaWorld:
    """Run a seed to its end; see ``problems``. ``world``: the one of this seed, if it is made already."""
    return run_virtual((world or KafkaWorld(seed, options)).run())
