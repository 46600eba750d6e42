"""One run: three nodes, writers and readers, and a nemesis, all drawn from one seed."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from milena.model.errors import FateUnknownError, MilenaError
from milena.model.requests import Acks, IdempotencyKey, ProduceRequest, Records
from tests.sim.nodes.history import History, Write
from tests.support.clusters.nodes import Cluster, SimNode
from tests.support.clusters.runners import values_of
from tests.support.time.virtual_time import LoopClock, run_virtual

T = TypeVar("T")

TOPIC = "t"
PARTITIONS = 2
HEAL_MS = 60_000
WRITABLE_MS = 10_000


@dataclass(eq=False)
class Campaign:
    """See the module. ``seconds`` are virtual."""

    seed: int
    seconds: float = 20
    history: History = field(default_factory=History)
    events: list[str] = field(default_factory=list)
    is_over: bool = False

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.clock = LoopClock()
        self.cluster = Cluster(
            seed=self.seed,
            network_ms=lambda rng: rng.expovariate(1.0) + (rng.random() < 0.01) * 50,
            disk_delay_ms=lambda rng: rng.expovariate(0.5) + (rng.random() < 0.01) * 100,
            preferred_interval_ms=3_000,
        )
        self._values = 0

    async def run(self) -> list[str]:
        cluster = await self.cluster.start()
        await cluster.create(TOPIC, (1, 2, 3), (2, 3, 1))
        clients = [
            *(self.write_plain() for _ in range(4)),
            *(self.write_keyed() for _ in range(2)),
            *(self.read(number % PARTITIONS) for number in range(4)),
        ]
        tasks = [asyncio.ensure_future(client) for client in clients]
        await self.do_harm()
        self.is_over = True
        await self.recover()
        # Writers that do not give up are done at the latest now.
        async with asyncio.timeout(HEAL_MS / 1000):
            await asyncio.gather(*tasks)
        await self.clock.sleep(1_000)
        copies = {number: await self.copies(number) for number in range(PARTITIONS)}
        problems = self.history.judge(copies)
        await cluster.close()
        return problems

    # Clients.

    def some_node(self) -> SimNode | None:
        nodes = self.cluster.nodes
        return self.cluster.nodes[self.rng.choice(sorted(nodes))] if nodes else None

    def new_write(self, *, is_keyed: bool = False) -> Write:
        self._values += 1
        write = Write(f"v{self._values}", self.rng.randrange(PARTITIONS), is_keyed=is_keyed)
        self.history.writes[write.value] = write
        return write

    async def write_plain(self) -> None:
        while not self.is_over:
            await self.clock.sleep(self.rng.uniform(1, 60))
            node = self.some_node()
            if node is None:
                continue
            write = self.new_write()
            await self.send(node, write, None)

    async def write_keyed(self) -> None:
        """Until it is acknowledged, whichever node it takes."""
        while not self.is_over:
            write = self.new_write(is_keyed=True)
            key = IdempotencyKey(
                key_hash=write.value.encode().ljust(16, b"-"), body_hash=b"12345678"
            )
            while write.offset is None:
                await self.clock.sleep(self.rng.uniform(1, 60))
                node = self.some_node()
                if node is not None:
                    await self.send(node, write, key)

    async def send(self, node: SimNode, write: Write, key: IdempotencyKey | None) -> None:
        request = ProduceRequest(
            topic=TOPIC,
            records=Records(keys=None, values=[write.value.encode()]),
            acks=Acks.ALL,
            timeout_ms=1_000,
            partition=write.partition,
            idempotency=key,
        )
        error: MilenaError | None
        try:
            receipts = await self.answer_of(node, node.produce.produce(request))
            if receipts is None:
                return
            [receipt] = receipts
            error = receipt.error
            offset = receipt.offset
        except MilenaError as raised:
            error, offset = raised, None
        if error is None:
            write.offset = offset
        elif not isinstance(error, FateUnknownError) and key is None:
            write.is_refused = True
            write.why = f"{type(error).__name__}: {error}"

    async def answer_of(self, node: SimNode, work: Coroutine[Any, Any, T]) -> T | None:
        """What the node answers; None when it dies first, whatever its code still does on its way out."""
        task = asyncio.ensure_future(work)
        died = asyncio.ensure_future(self.death_of(node))
        await asyncio.wait({task, died}, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if self.is_alive(node):
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None

    def is_alive(self, node: SimNode) -> bool:
        return self.cluster.nodes.get(node.node_id) is node

    async def death_of(self, node: SimNode) -> None:
        while self.is_alive(node):
            await self.clock.sleep(20)

    async def read(self, partition: int) -> None:
        offset = 0
        while not self.is_over:
            node = self.some_node()
            if node is None:
                await self.clock.sleep(50)
                continue
            try:
                fetch = node.fetch(TOPIC, offset, partition=partition, timeout_ms=100)
                result = await self.answer_of(node, fetch)
            except MilenaError:
                await self.clock.sleep(20)
                continue
            for value in values_of(result.batches) if result is not None else ():
                self.history.on_read(partition, offset, value, f"node {node.node_id}")
                offset += 1
            await self.clock.sleep(1)

    # The nemesis.

    def note(self, what: str) -> None:
        self.events.append(f"{self.clock.now_ms() / 1000:.3f} {what}")

    async def do_harm(self) -> None:
        end = self.clock.now_ms() + self.seconds * 1000
        harms = (
            self.kill, self.kill, self.restart, self.restart, self.restart, self.isolate,
            self.cut, self.heal, self.heal, self.stop, self.confuse_quorum, self.fill_disk,
            self.power_cut_of_all,
        )  # fmt: skip
        while self.clock.now_ms() < end:
            await self.clock.sleep(self.rng.uniform(50, 1_500))
            await self.rng.choice(harms)()

    async def kill(self) -> None:
        node = self.some_node()
        if node is not None and len(self.cluster.nodes) > 1:
            is_power = self.rng.random() < 0.5
            keep = self.rng.choice(("none", "some", "all"))
            self.note(f"kill {node.node_id} power={is_power} keep={keep}")
            await self.cluster.kill(node.node_id, power=is_power, keep=keep)  # type: ignore[arg-type]

    async def power_cut_of_all(self) -> None:
        if self.rng.random() < 0.3:
            self.note("power cut of all")
            for node_id in list(self.cluster.nodes):
                await self.cluster.kill(node_id, power=True, keep="some")
            await self.clock.sleep(200)
            for node_id in self.cluster.node_ids:
                await self.cluster.restart(node_id)

    async def restart(self) -> None:
        for node_id in self.cluster.node_ids:
            if node_id not in self.cluster.nodes:
                self.note(f"restart {node_id}")
                await self.cluster.restart(node_id)
                return

    async def stop(self) -> None:
        node = self.some_node()
        if node is not None and len(self.cluster.nodes) > 2:
            self.note(f"stop {node.node_id}")
            await self.cluster.stop_gracefully(node.node_id)

    async def isolate(self) -> None:
        node = self.some_node()
        if node is not None:
            self.note(f"isolate {node.node_id}")
            self.cluster.isolate(node.node_id)

    async def cut(self) -> None:
        one, other = self.rng.sample(self.cluster.node_ids, 2)
        self.note(f"cut {one} to {other}")
        self.cluster.network.cuts.add((one, other))
        self.cluster.topology_changed()

    async def heal(self) -> None:
        self.note("heal")
        self.cluster.heal()
        for files in self.cluster.files.values():
            files.capacity = None

    async def confuse_quorum(self) -> None:
        node = self.some_node()
        if node is not None:
            faults = self.rng.choices(("lost", "refused", "vanished", "ok"), k=4)
            self.note(f"quorum answers of {node.node_id}: {faults}")
            node.quorum.faults = faults

    async def fill_disk(self) -> None:
        node = self.some_node()
        if node is not None:
            self.note(f"disk full {node.node_id}")
            node.files.capacity = node.files.used_bytes() + self.rng.randrange(1_000)

    async def recover(self) -> None:
        """Faults stop; everything must be in sync again within a bounded time."""
        self.note("recover")
        await self.heal()
        for node_id in self.cluster.node_ids:
            if node_id not in self.cluster.nodes:
                await self.cluster.restart(node_id)

        def is_whole() -> bool:
            return self.cluster.is_led(TOPIC) and all(
                set(self.cluster.isr_of(TOPIC, number)) == {1, 2, 3} for number in range(PARTITIONS)
            )

        await self.cluster.until(is_whole, HEAL_MS)
        deadline = self.clock.now_ms() + WRITABLE_MS
        for number in range(PARTITIONS):
            while not await self.is_writable(number):
                assert self.clock.now_ms() < deadline, "no progress after faults stopped"
                await self.clock.sleep(100)

    async def is_writable(self, partition: int) -> bool:
        write = self.new_write()
        write.partition = partition
        leader = self.cluster.leader_of(TOPIC, partition)
        if leader is not None:
            await self.send(self.cluster.nodes[leader], write, None)
        return write.offset is not None

    async def copies(self, partition: int) -> list[list[str]]:
        return [
            await self.cluster.nodes[node_id].read(TOPIC, partition, is_local=True)
            for node_id in self.cluster.node_ids
        ]


def run_campaign(seed: int, seconds: float = 20) -> Campaign:
    """Run it; problems are in ``history``."""
    campaign = Campaign(seed, seconds)
    run_virtual(campaign.run())
    return campaign
