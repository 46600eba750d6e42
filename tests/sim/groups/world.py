"""One run: a simulated cluster, writers, and two groups of readers: members, and members with REST consumers.

``tests.support.groups.checker`` checks what members saw. In addition, every image is checked.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from immutables import Map

from raft_meta.machine.image import CommittedOffset, Group, Image, PartitionKey, PartitionSet
from tests.sim.cluster.clients import Clients
from tests.sim.cluster.invariants import Checker, ViolationError
from tests.sim.cluster.machine import NodeProcess
from tests.sim.cluster.world import TOPIC, Options, World
from tests.sim.groups.apis import SimGroupApi, SimKafkaGroupApi, SimRestApi
from tests.support.groups.checker import violations
from tests.support.groups.history import GroupHistory
from tests.support.groups.members import Clock, Habits, Member, RefusedError, UnknownError
from tests.support.groups.rest_members import RestMember

DRAIN_S = 60.0
"""The virtual seconds after the last fault within which all records must be read and committed."""
ASSIGNORS = ("sticky", "range", "roundrobin")

NO_OFFSETS: Map[PartitionKey, CommittedOffset] = Map()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions(Options):
    """The parameters of a run. ``members`` are in the first group, ``consumers`` are REST consumers in the second.

    ``kafka``: members of the first group that use Kafka's consumer protocol; every second one is static.
    """

    partitions: int = 4
    parts: tuple[str, ...] | None = ()
    members: int = 4
    consumers: int = 3
    kafka: int = 0

    def command(self, seed: int) -> str:
        """Return the command that replays a run."""
        words = [f"python -m tests.sim.groups --seed {seed}"]
        default = GroupOptions()
        words += [
            f"--{name} {getattr(self, name):g}"
            for name in ("nodes", "seconds", "partitions", "members", "consumers", "kafka")
            if getattr(self, name) != getattr(default, name)
        ]
        if self.kinds:
            words.append(f"--faults {','.join(self.kinds)}")
        return " ".join(words)


@dataclass(slots=True)
class Troop:
    """A group and its members."""

    group: str
    history: GroupHistory = field(default_factory=GroupHistory)
    members: list[Member | RestMember] = field(default_factory=list)

    def settle(self) -> None:
        """Stop the members' breakdowns."""
        for member in self.members:
            member.is_calm = True


class GroupClients(Clients):
    """Writers, and the members of two groups."""

    def __init__(self, world: "GroupWorld") -> None:
        super().__init__(world)
        options, rng = world.group_options, world.rng
        habits = Habits(
            session_s=rng.choice((2.0, 4.0)), harm_chance=rng.choice((0.0, 0.005, 0.02))
        )
        clock = Clock(lambda: world.scheduler.now, asyncio.sleep)
        self.world = world
        self.troops = [Troop("members"), Troop("mixed")]
        api = SimGroupApi(
            world, "members", assignor=rng.choice(ASSIGNORS), session_s=habits.session_s
        )
        mixed = SimGroupApi(world, "mixed", assignor="sticky", session_s=habits.session_s)
        rest = SimRestApi(world, "mixed")
        for number in range(options.members):
            self._enlist(
                0,
                Member(
                    f"m{number}", api, self.troops[0].history, clock, Random(rng.random()), habits
                ),
            )
        for number in range(options.consumers):
            self._enlist(
                1,
                RestMember(
                    f"r{number}", rest, self.troops[1].history, clock, Random(rng.random()), habits
                ),
            )
        if options.consumers:
            self._enlist(
                1, Member("x0", mixed, self.troops[1].history, clock, Random(rng.random()), habits)
            )
        for number in range(options.kafka):
            kafka = SimKafkaGroupApi(
                world,
                "members",
                assignor=rng.choice(("sticky", "range")),
                session_s=habits.session_s,
                is_static=number % 2 == 1,
            )
            self._enlist(
                0,
                Member(
                    f"k{number}",
                    kafka,
                    self.troops[0].history,
                    clock,
                    Random(rng.random()),
                    habits,
                ),
            )

    def _enlist(self, troop: int, member: Member | RestMember) -> None:
        self.troops[troop].members.append(member)

    def all(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Return all clients. None writes with a key: a new partition would make its fate unknown."""
        writers = (self._write_plain, self._write_plain, self._write_plain)
        members = [member.run for troop in self.troops for member in troop.members]
        return [*(self._counted(writer) for writer in writers), self._grow_topic, *members]

    async def _grow_topic(self) -> None:
        """Add partitions to the topic from time to time; they must be assigned, too."""
        await asyncio.sleep(self._rng.uniform(0, 3 * self.world.options.seconds))
        if self._is_over:
            return
        count = self.world.options.partitions + 1
        self.world.note(f"{count} partitions")
        self.call(lambda ports: ports.metadata.add_partitions(TOPIC, count))

    async def finish(self) -> None:
        """Wait for the end of the writers, and then of the members."""
        for troop in self.troops:
            troop.settle()
        await super().finish()
        for troop in self.troops:
            if troop.members:
                await self._drain(troop)

    def _ends(self) -> dict[int, int]:
        """Return the present end of each partition. It may still rise by writes of unknown fate."""
        topic_id, ledgers = self.world.topic_id, self.world.checker.ledgers
        return {
            partition: ledgers[topic_id, partition].end
            for partition in range(self.world.options.partitions)
            if (topic_id, partition) in ledgers
        }

    async def _drain(self, troop: Troop) -> None:
        try:
            await self.world.until(
                lambda: self._is_done(troop), DRAIN_S, f"liveness: {troop.group} is not done"
            )
        except ViolationError as violation:
            troop.history.ends, troop.history.is_drained = self._ends(), True
            found = violations(troop.history)
            raise ViolationError(f"{found[:3]} {self._state(troop)} {violation}"[:2000]) from None
        troop.history.ends, troop.history.is_drained = self._ends(), True
        for member in troop.members:
            member.is_over = True
        if all(isinstance(member, Member) for member in troop.members):
            troop.history.survivors = tuple(member.name for member in troop.members)
        await self._look(troop)
        self.world.problems += violations(troop.history)

    def _is_done(self, troop: Troop) -> bool:
        image = self.world.checker.newest_image()
        group = image.groups.get(troop.group)
        offsets = image.offsets.get(troop.group, NO_OFFSETS)
        topic_id = self.world.topic_id
        is_read = all(
            end == 0 or ((at := offsets.get((topic_id, p))) is not None and at.offset == end)
            for p, end in self._ends().items()
        )
        names = {member.name for member in troop.members}
        return (
            is_read
            and group is not None
            and {m.member_id for m in group.members} == names
            and all(m.held == m.target for m in group.members)
            and all(self._knows(member, group) for member in troop.members)
        )

    def _knows(self, member: Member | RestMember, group: Group) -> bool:
        """Return whether a member's state is that of the group."""
        held = next(m.held for m in group.members if m.member_id == member.name)
        own = {number for _, number in partitions_of(held)}
        return not isinstance(member, Member) or member.owned == own

    def _state(self, troop: Troop) -> str:
        image = self.world.checker.newest_image()
        group = image.groups.get(troop.group)
        offsets = image.offsets.get(troop.group, NO_OFFSETS)
        members = [
            f"{m.name}: {sorted(m.owned)} under {m.epoch}" if isinstance(m, Member) else m.name
            for m in troop.members
        ]
        known = () if group is None else group.members
        return (
            f"ends {troop.history.ends}, committed { {k[1]: o.offset for k, o in offsets.items()} }, "
            f"members {members}, in the group { {m.member_id: (m.member_epoch, m.held, m.target) for m in known} }"
        )

    async def _look(self, troop: Troop) -> None:
        while True:
            try:
                await troop.members[-1].look()
            except (RefusedError, UnknownError):
                await asyncio.sleep(0.1)
            else:
                return


class GroupChecker(Checker):
    """Also checks the groups in every image."""

    def _on_image(self, process: NodeProcess, image: Image) -> None:
        before = self._newest
        super()._on_image(process, image)
        if image.index > before.index:
            self._check_groups(before, image)

    def _check_groups(self, before: Image, image: Image) -> None:
        for group_id, group in image.groups.items():
            if group is not before.groups.get(group_id):
                self._check_group(before.groups.get(group_id), group)
        for group_id, offsets in image.offsets.items():
            former = before.offsets.get(group_id)
            if former is None or offsets is former:
                continue
            for key, committed in former.items():
                now = offsets.get(key)
                if now is None or now.offset < committed.offset:
                    self._broken(
                        f"group {group_id}: the commit of {key[1]} went from {committed} to {now}"
                    )

    def _check_group(self, before: Group | None, group: Group) -> None:
        for what in ("held", "target"):
            seen: set[tuple[str, int]] = set()
            for member in group.members:
                own = partitions_of(getattr(member, what))
                if seen & own:
                    self._broken(f"{what} of two members: {seen & own} in {group}")
                seen |= own
        for member in group.members:
            if member.member_epoch > group.generation:
                self._broken(f"an epoch of the future: {member} in {group}")
        if before is not None and group.generation < before.generation:
            self._broken(f"generation went from {before.generation} to {group.generation}")


def partitions_of(held: PartitionSet) -> set[tuple[str, int]]:
    """Return the partitions of a set, one by one."""
    return {(topic_id, number) for topic_id, numbers in held for number in numbers}


class GroupWorld(World):
    """A simulated cluster with groups."""

    clients: GroupClients

    def __init__(self, seed: int, options: GroupOptions) -> None:
        super().__init__(seed, options)
        self.group_options = options
        self.checker = GroupChecker(self)
        self.clients = GroupClients(self)

    @property
    def harms(self) -> list[str]:
        """Return the breakdowns of members."""
        return [
            harm
            for troop in self.clients.troops
            for member in troop.members
            for harm in member.harms
        ]


def run_group_world(seed: int, options: GroupOptions | None = None) -> GroupWorld:
    """Run a seed to its end; see ``problems``."""
    world = GroupWorld(seed, options or GroupOptions())
    world.run()
    return world
