"""A classic group in a cluster under faults: its clients come, go, fall silent and start again; coordinators move.

The judge compares what clients got with what every image says. In one generation no two members own one partition,
and neither the members nor their assignments differ. Offsets never go back. After the last fault all members share
one generation, and it has every partition.
"""

import asyncio
import json
from dataclasses import dataclass, field
from random import Random

from http_api.ports.groups import OffsetToCommit
from milena.model.errors import MemberIdRequiredError, MilenaError
from node.groups.classic.calls import JoinAnswer, JoinRequest, LeavingMember, SyncRequest
from node.groups.classic.service import ClassicGroups
from raft_meta.machine.groups import group_rules
from raft_meta.machine.groups.coordinators import coordinator_of
from raft_meta.machine.image import Image
from tests.support.clusters.nodes import Cluster

GROUP, TOPIC = "g", "t"
PARTITIONS = 6
SESSION_MS, REBALANCE_MS = 3_000, 5_000
PATIENCE_S = 12.0
"""How long a client waits for a response: longer than any coordinator may hold one back."""
SETTLE_MS = 90_000

Shares = dict[str, frozenset[int]]
"""The partitions of members, by what stays the same when a static member starts again."""


@dataclass
class Judge:
    """Checks that the generations in images and in responses of clients fit together."""

    stored: dict[int, Shares] = field(default_factory=dict)
    """By generation, as the images have it."""
    seen: dict[int, Shares] = field(default_factory=dict)
    """By generation, as clients got it."""
    coordinators: set[int] = field(default_factory=set)
    commits: int = 0
    problems: list[str] = field(default_factory=list)
    _newest: Image = field(default_factory=Image)

    def on_image(self, image: Image) -> None:
        """Compare an image with those before."""
        if image.index <= self._newest.index:
            return
        before, self._newest = self._newest, image
        self._on_group(image)
        former = before.offsets.get(GROUP)
        for key, committed in () if former is None else former.items():
            now = image.offsets[GROUP].get(key)
            if now is None or now.offset < committed.offset:
                self.problems.append(f"the commit of {key[1]} went from {committed} to {now}")

    def _on_group(self, image: Image) -> None:
        group = image.groups.get(GROUP)
        if group is None or group.classic is None:
            return
        highest = max(self.stored, default=0)
        if group.generation < highest:
            self.problems.append(f"generation went from {highest} to {group.generation}")
        shares = {
            member.instance_id or member.member_id: partitions_of(member.assignment)
            for member in group.classic.members
        }
        known = self.stored.setdefault(group.generation, shares)
        if known != shares:
            self.problems.append(f"generation {group.generation} was {known} and is {shares}")

    def on_assignment(self, generation: int, identity: str, owned: frozenset[int]) -> None:
        """Compare what a client got with what its generation's other members got."""
        stored = self.stored.get(generation)
        if stored is None or stored.get(identity) != owned:
            self.problems.append(f"{identity} got {set(owned)} in {generation}, stored is {stored}")
        seen = self.seen.setdefault(generation, {})
        for other, theirs in seen.items():
            if other != identity and theirs & owned:
                self.problems.append(
                    f"{identity} and {other} share {theirs & owned} in {generation}"
                )
        if seen.setdefault(identity, owned) != owned:
            self.problems.append(f"{identity} has two assignments in {generation}")


def partitions_of(assignment: bytes) -> frozenset[int]:
    """Return the partitions of an assignment, as the leader of this simulation writes it."""
    return frozenset(json.loads(assignment)) if assignment else frozenset()


class ClassicClient:
    """A process that keeps to the protocol, until it breaks down."""

    def __init__(self, world: "ClassicWorld", name: str, instance_id: str | None) -> None:
        self._world = world
        self._rng = Random(world.rng.random())
        self.name = name
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: frozenset[int] = frozenset()
        self.is_calm = False
        self.is_over = False

    @property
    def identity(self) -> str:
        """The identity of a client, which a restart keeps."""
        return self.instance_id or self.member_id

    def _port(self) -> ClassicGroups | None:
        """The coordinator, as some node knows it: it may have moved."""
        node = self._rng.choice([*self._world.cluster.nodes.values()])
        found = coordinator_of(node.metadata.image, GROUP)
        coordinator = None if found is None else self._world.cluster.nodes.get(found)
        return None if coordinator is None else coordinator.groups.classic

    async def run(self) -> None:
        """Live until the run is over."""
        while not self.is_over:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._enter()
                await self._stay()
            except TimeoutError:
                pass
            except MilenaError as error:
                if error.code in {"member_not_found", "member_fenced"}:
                    self._begin_anew()
            await asyncio.sleep(self._rng.uniform(0.05, 0.4))

    def _begin_anew(self) -> None:
        self.member_id, self.generation, self.owned = "", -1, frozenset()

    async def _enter(self) -> None:
        port = self._port()
        if port is None:
            return
        try:
            joined = await port.join(self._request())
        except MemberIdRequiredError as required:
            self.member_id = required.member_id
            joined = await port.join(self._request())
        self.member_id, self.generation = joined.member_id, joined.generation
        port = self._port() or port
        shares = self._shares(joined) if joined.leader == joined.member_id else {}
        answer = await port.sync(
            SyncRequest(
                group_id=GROUP,
                member_id=self.member_id,
                generation=self.generation,
                instance_id=self.instance_id,
                assignments=shares,
            )
        )
        self._world.look()
        self.owned = partitions_of(answer.assignment)
        self._world.judge.on_assignment(self.generation, self.identity, self.owned)

    def _request(self) -> JoinRequest:
        return JoinRequest(
            group_id=GROUP,
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.name,
            host="sim",
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(("range", self._rng.choice((b"a", b"a", b"b"))),),
        )

    def _shares(self, joined: JoinAnswer) -> dict[str, bytes]:
        """Deal the partitions out in a random order."""
        numbers = list(range(PARTITIONS))
        self._rng.shuffle(numbers)
        count = len(joined.members)
        return {
            member.member_id: json.dumps(sorted(numbers[at::count])).encode()
            for at, member in enumerate(joined.members)
        }

    async def _stay(self) -> None:
        """Heartbeats and commits, until the group rebalances or this process breaks down."""
        while not self.is_over:
            await asyncio.sleep(self._rng.uniform(0.2, 0.9))
            port = self._port()
            if port is None:
                continue
            async with asyncio.timeout(PATIENCE_S):
                await port.heartbeat(GROUP, self.member_id, self.generation, self.instance_id)
                await self._commit(port)
            if not self.is_calm and self._rng.random() < 0.12:
                await self._break_down(port)
                return

    async def _commit(self, port: ClassicGroups) -> None:
        if not self.owned:
            return
        partition = self._rng.choice(sorted(self.owned))
        found = await port.fetch_offsets(GROUP, {(TOPIC, partition)})
        offset = 1 + max((row.offset for row in found), default=0)
        await port.commit(
            GROUP,
            [OffsetToCommit(topic=TOPIC, partition=partition, offset=offset)],
            member_id=self.member_id,
            generation=self.generation,
            instance_id=self.instance_id,
        )
        self._world.judge.commits += 1

    async def _break_down(self, port: ClassicGroups) -> None:
        kind = self._rng.choice(("leave", "restart", "stall", "change"))
        if kind == "leave":
            leaving = LeavingMember(member_id=self.member_id, instance_id=self.instance_id)
            await port.leave(GROUP, [leaving])
            self._begin_anew()
        elif kind == "restart":
            self._begin_anew()
        elif kind == "stall":
            # Longer than its session, and then as if nothing had happened.
            await asyncio.sleep(self._rng.uniform(1, 2) * SESSION_MS / 1000)
            await self._stay()


class ClassicWorld:
    """One run; see ``judge.problems``."""

    def __init__(self, seed: int, *, seconds: float = 30.0) -> None:
        self.rng = Random(seed)
        self.seconds = seconds
        self.judge = Judge()
        self.cluster = Cluster(
            seed=seed,
            network_ms=lambda rng: rng.choice((0.0, 1.0, 30.0)),
            initial_delay_ms=self.rng.choice((0, 500)),
        )
        self.clients = [ClassicClient(self, f"c{n}", f"i{n}" if n < 2 else None) for n in range(5)]

    def look(self) -> None:
        """Show the newest image to the judge."""
        self.judge.on_image(self.cluster.image)

    async def run(self) -> Judge:
        """Run clients and faults, then wait until all is well."""
        cluster = await self.cluster.start()
        await cluster.until(lambda: cluster.image.feature_level >= group_rules.CLASSIC_LEVEL)
        await cluster.create(TOPIC, *[(1, 2, 3)] * PARTITIONS)
        tasks = [asyncio.create_task(client.run()) for client in self.clients]
        watching = asyncio.create_task(self._watch())
        await self._break_nodes()
        for client in self.clients:
            client.is_calm = True
        await cluster.until(self._is_settled, SETTLE_MS)
        for client in self.clients:
            client.is_over = True
        watching.cancel()
        await asyncio.gather(*tasks)
        await asyncio.gather(watching, return_exceptions=True)
        await cluster.close()
        return self.judge

    async def _watch(self) -> None:
        while True:
            self.look()
            found = coordinator_of(self.cluster.image, GROUP)
            if found is not None:
                self.judge.coordinators.add(found)
            await asyncio.sleep(0.02)

    async def _break_nodes(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.seconds
        while loop.time() < end:
            await asyncio.sleep(self.rng.uniform(2, 6))
            image = self.cluster.image
            coordinator = coordinator_of(image, GROUP)
            node_id = coordinator if coordinator and self.rng.random() < 0.7 else 1
            if node_id not in self.cluster.nodes:
                continue
            if self.rng.random() < 0.5:
                await self.cluster.kill(node_id, power=self.rng.random() < 0.3)
                await asyncio.sleep(self.rng.uniform(1, 8))
                await self.cluster.restart(node_id)
            else:
                self.cluster.isolate(node_id)
                await asyncio.sleep(self.rng.uniform(0.5, 8))
                self.cluster.heal()

    def _is_settled(self) -> bool:
        generations = {client.generation for client in self.clients}
        owned = [number for client in self.clients for number in client.owned]
        group = self.cluster.image.groups.get(GROUP)
        return (
            len(generations) == 1
            and sorted(owned) == list(range(PARTITIONS))
            and group is not None
            and group.generation in generations
            and group.member_count == len(self.clients)
        )
