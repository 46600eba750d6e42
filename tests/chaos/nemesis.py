"""Carry out a plan of faults: find the nodes for each step, inject the fault, and heal."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from tests.chaos.adapter import Adapter
from tests.chaos.cluster import Cluster, Node
from tests.chaos.history import Fault, Heal, History, Outcome, Write
from tests.chaos.network import CLIENT, Network, Rule
from tests.chaos.scenarios import BETWEEN_STEPS_S, Cycle, Step
from tests.chaos.setup import Setup

READY_TIMEOUT_S = 20.0
SETTLE_TIMEOUT_S = 30.0
POLL_S = 0.1
START_S = 2.0
"""The time after a node's start before the next step, in s."""
FLOW_TIMEOUT_S = 10.0
PRECONDITIONS = frozenset({"settle", "flow"})
"""Steps that only wait; they are noted only if the wait timed out."""
BLINKS = 8
BLINK_PAUSED_S = (0.05, 0.8)
BLINK_AWAKE_S = (0.05, 0.3)

Operation = Callable[[Sequence[Node]], Awaitable[str]]


class Nemesis:
    """Injects faults into one cluster."""

    def __init__(self, setup: Setup, cluster: Cluster, adapter: Adapter, history: History) -> None:
        self._setup = setup
        self._cluster = cluster
        self._adapter = adapter
        self._history = history
        self._rng = random.Random(f"{setup.seed}/nemesis")
        self._dead: list[Node] = []
        """The nodes that were taken down in this cycle, in order."""
        self._is_settled = True
        self._operations: dict[str, Operation] = {
            "kill": self._kill,
            "stop": self._stop,
            "crash": self._crash,
            "power": self._power,
            "start": self._start,
            "roll": self._roll,
            "pause": self._pause,
            "blink": self._blink,
            "torn": lambda nodes: self._damage(nodes, "torn"),
            "flip": lambda nodes: self._damage(nodes, "flip"),
            "wipe": self._wipe,
            "settle": self._settle,
            "flow": self._flow,
            "fill": self._fill,
            "isolate": self._isolate,
            "split": self._split,
            "halves": self._halves,
            "mute": self._mute,
            "deafen": self._deafen,
            "loss": lambda _: self._everywhere(Rule(loss_share=self._rng.choice((0.02, 0.1, 0.3)))),
            "delay": lambda _: self._everywhere(
                Rule(delay_ms=self._rng.choice((20, 100, 300)), jitter_ms=50)
            ),
            "double": lambda _: self._everywhere(Rule(double_share=0.2, jitter_ms=20)),
        }

    @property
    def operations(self) -> frozenset[str]:
        """Return the names of all operations."""
        return frozenset(self._operations)

    async def run(self, cycles: Sequence[Cycle]) -> None:
        """Carry out a plan; heal after each cycle."""
        start_s = self._history.now_s()
        for cycle in cycles:
            await asyncio.sleep(max(0.0, start_s + cycle.at_s - self._history.now_s()))
            partition = self._rng.randrange(self._setup.partitions)
            for number, step in enumerate(cycle.steps):
                if number:
                    await asyncio.sleep(self._rng.uniform(0, BETWEEN_STEPS_S))
                await self._carry_out(step, partition)
                if not self._is_settled:
                    break
            await asyncio.sleep(cycle.hold_s)
            await self.heal()

    async def heal(self) -> None:
        """Undo all faults; note which nodes had exited by themselves."""
        crashed = {
            str(n.node_id): n.process.exit_code
            for n in self._cluster.nodes
            if not n.is_up and n not in self._dead
        }
        await asyncio.to_thread(self._cluster.heal)
        self._dead = []
        self._is_settled = True
        self._history.add(Heal(at_s=self._history.now_s(), crashed=crashed))

    async def leader(self, partition: int) -> Node | None:
        """Return the leader that most nodes report."""
        votes: dict[int, int] = {}
        for node in self._cluster.nodes:
            if node.is_healthy:
                named = await self._adapter.leader(node.url, self._setup.topic, partition)
                if named is not None:
                    votes[named] = votes.get(named, 0) + 1
        return self._cluster.node(max(votes, key=votes.__getitem__)) if votes else None

    async def _carry_out(self, step: Step, partition: int) -> None:
        nodes = await self._resolve(step.target, partition)
        began_s = self._history.now_s()
        detail = await self._operations[step.operation](nodes)
        if step.operation in PRECONDITIONS and not detail:
            return
        self._history.add(
            Fault(
                at_s=self._history.now_s(),
                began_s=began_s,
                operation=step.operation,
                target=step.target,
                partition=partition,
                nodes=tuple(n.node_id for n in nodes),
                detail=detail,
            )
        )

    async def _resolve(self, target: str, partition: int) -> list[Node]:
        by_death = {"dead": slice(-1, None), "first-dead": slice(0, 1), "second-dead": slice(1, 2)}
        if target == "all":
            return list(self._cluster.nodes)
        if target in by_death:
            return self._dead[by_death[target]]
        healthy = [n for n in self._cluster.nodes if n.is_healthy]
        leader = await self.leader(partition)
        if target == "leader" and leader in healthy:
            return [leader]
        others = [n for n in healthy if n is not leader] or healthy
        return self._rng.sample(others, min(1, len(others)))

    # -- processes

    async def _kill(self, nodes: Sequence[Node]) -> str:
        for node in nodes:
            node.process.kill()
        self._dead += nodes
        return ""

    async def _stop(self, nodes: Sequence[Node]) -> str:
        obeyed = [await asyncio.to_thread(n.stop) for n in nodes]
        self._dead += nodes
        return "" if all(obeyed) else "did not stop in time"

    async def _start(self, nodes: Sequence[Node]) -> str:
        for node in nodes:
            node.start()
        await asyncio.sleep(START_S)
        return ""

    async def _roll(self, nodes: Sequence[Node]) -> str:
        late = []
        for node in nodes:
            if not await asyncio.to_thread(node.stop):
                late.append(node.node_id)
            node.start()
            await self._wait_ready(node)
        return f"did not stop in time: {late}" if late else ""

    async def _pause(self, nodes: Sequence[Node]) -> str:
        for node in nodes:
            node.process.pause()
        return ""

    async def _blink(self, nodes: Sequence[Node]) -> str:
        for _ in range(BLINKS):
            for node in nodes:
                node.process.pause()
            await asyncio.sleep(self._rng.uniform(*BLINK_PAUSED_S))
            for node in nodes:
                node.process.resume()
            await asyncio.sleep(self._rng.uniform(*BLINK_AWAKE_S))
        return f"{BLINKS} times"

    async def _wait_ready(self, node: Node) -> None:
        for _ in range(int(READY_TIMEOUT_S / POLL_S)):
            if await self._adapter.is_ready(node.url):
                return
            await asyncio.sleep(POLL_S)

    # -- disks

    async def _crash(self, nodes: Sequence[Node]) -> str:
        """Crash with a power cut if the disks support it, else with a kill."""
        if all(n.disk.can_lose_power for n in nodes):
            return await self._power(nodes)
        return await self._kill(nodes)

    async def _power(self, nodes: Sequence[Node]) -> str:
        await asyncio.to_thread(self._cluster.cut_power, nodes)
        self._dead += nodes
        return "power cut"

    async def _damage(self, nodes: Sequence[Node], operation: str) -> str:
        return "; ".join([n.damage(operation, self._rng) for n in nodes])

    async def _wipe(self, nodes: Sequence[Node]) -> str:
        return "; ".join([n.wipe() for n in nodes])

    async def _fill(self, nodes: Sequence[Node]) -> str:
        for node in nodes:
            await asyncio.to_thread(node.disk.fill)
        return ""

    async def _settle(self, nodes: Sequence[Node]) -> str:
        """Wait until every replica is in sync, so that the next step does not remove the last complete copy."""
        for _ in range(int(SETTLE_TIMEOUT_S / POLL_S)):
            if await self._all_in_sync(nodes):
                return ""
            await asyncio.sleep(POLL_S)
        self._is_settled = False
        return "replicas are not in sync: the rest of the cycle is left out"

    async def _all_in_sync(self, nodes: Sequence[Node]) -> bool:
        for node in nodes:
            for partition in range(self._setup.partitions):
                if not await self._adapter.is_in_sync(node.url, self._setup.topic, partition):
                    return False
        return True

    async def _flow(self, _: Sequence[Node]) -> str:
        """Wait until every partition accepted a write since the last heal, so that the next step interrupts writes."""
        for _attempt in range(int(FLOW_TIMEOUT_S / POLL_S)):
            if self._is_written_everywhere():
                return ""
            await asyncio.sleep(POLL_S)
        return "not every partition took a write"

    def _is_written_everywhere(self) -> bool:
        written: set[int] = set()
        for event in reversed(self._history.events):
            if isinstance(event, Heal):
                break
            if isinstance(event, Write) and event.outcome is Outcome.OK:
                written.add(event.partition)
        return len(written) == self._setup.partitions

    # -- network

    @property
    def _network(self) -> Network:
        assert self._cluster.network is not None, "scenarios.available allows no such step"
        return self._cluster.network

    def _others(self, nodes: Sequence[Node]) -> list[int]:
        return [n.node_id for n in self._cluster.nodes if n not in nodes]

    async def _isolate(self, nodes: Sequence[Node]) -> str:
        """Cut the nodes off from other nodes and clients."""
        self._network.cut([n.node_id for n in nodes], [*self._others(nodes), CLIENT])
        return ""

    async def _split(self, nodes: Sequence[Node]) -> str:
        """Cut the nodes off from the other nodes, but not from clients."""
        self._network.cut([n.node_id for n in nodes], self._others(nodes))
        return ""

    async def _halves(self, nodes: Sequence[Node]) -> str:
        """Split the nodes into two halves, which clients both reach."""
        side = self._rng.sample(list(nodes), len(nodes) // 2)
        self._network.cut([n.node_id for n in side], self._others(side))
        return f"apart: {[n.node_id for n in side]}"

    async def _mute(self, nodes: Sequence[Node]) -> str:
        """Drop the packets that the nodes send to the other nodes."""
        self._network.cut([n.node_id for n in nodes], self._others(nodes), is_one_way=True)
        return ""

    async def _deafen(self, nodes: Sequence[Node]) -> str:
        """Drop the packets that the other nodes send to the nodes."""
        self._network.cut(self._others(nodes), [n.node_id for n in nodes], is_one_way=True)
        return ""

    async def _everywhere(self, rule: Rule) -> str:
        ids = [n.node_id for n in self._cluster.nodes]
        for one in ids:
            for other in ids:
                if one != other:
                    self._network.rule(one, other, rule)
        return str(rule)
