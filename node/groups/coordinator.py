"""The coordinator of groups: the groups that this node coordinates now, and their timers.

The image decides which groups a node coordinates. A group that moves here starts with full sessions, and its targets
are worked out again. Without a lease this node decides nothing. After a stall of its own, or a time without a lease,
all members get full sessions again, because this node may not have heard them.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace

from immutables import Map
from msgspec import UNSET

from http_api.access import on_behalf
from http_api.ports.groups import Heartbeat, HeartbeatAnswer
from milena.model.contained import EntryPoint
from milena.model.errors import (
    FeatureLevelError,
    FencedError,
    GroupNotEmptyError,
    InconsistentGroupProtocolError,
    NotCoordinatorError,
)
from milena.model.types import MonotonicMs
from node.config.budgets import PROPOSE_MS
from node.context import NodeContext
from node.groups.classic.coordinated import ClassicSettings, CoordinatedClassicGroup
from node.groups.classic.coordinator import ClassicCoordinator
from node.groups.coordinated_group import CoordinatedGroup
from node.groups.coordinator_calls import CoordinatorCalls
from node.groups.deadlines import Deadlines
from node.groups.descriptions import TopicNames
from node.groups.group_messages import GroupDeleteRequest
from node.groups.group_writer import GroupContext
from node.groups.rest_members import RestMembers
from node.groups.subscriptions import Subscriptions
from node.peers.messages import Done
from raft_meta.machine.commands import DeleteGroup
from raft_meta.machine.groups import group_rules
from raft_meta.machine.groups.coordinators import Coordinators
from raft_meta.machine.image import Broker, Group, Image, Partition, PartitionKey, Topic

TICK_MS = 100
RESTING_TICK_MS = 500
"""The tick of a node that coordinates no group. Most of the cost of an idle node is that it wakes up."""
STALL_MS = 500
"""A tick that is late by more than this means that this node stalled and heard no heartbeats."""


class GroupCoordinator:
    """The groups that this node coordinates. Runs on the data loop."""

    def __init__(
        self, node: NodeContext, *, calls: CoordinatorCalls, classic: ClassicSettings
    ) -> None:
        self._node = node
        self._counts = node.counts.groups
        self._calls = calls
        self._rest_members: RestMembers | None = None
        self._coordinated: dict[str, CoordinatedGroup] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._deadlines = Deadlines()
        self._brokers: Map[int, Broker] = Map()
        self._topics: Map[str, Topic] = Map()
        self._partitions: Map[PartitionKey, Partition] = Map()
        self._groups: Map[str, Group] = Map()
        self._version = 0
        """``coordinators_version`` of the image for which groups were last dropped and taken over."""
        self._asked_for: set[str] = set()
        """Groups that were created here by a call since the last tick; the call may have changed nothing."""
        self._is_audit_due = False
        self._was_led = False
        self._is_closed = False
        self._context = GroupContext(
            node=node,
            check=calls.check,
            names=TopicNames(lambda: node.metadata.image),
            subscriptions=Subscriptions(),
            rest_members=lambda: self._rest_members,
            spawn=self._spawn,
            on_due=self._deadlines.schedule,
        )
        self.classic = ClassicCoordinator(
            lambda deadlines: replace(self._context, on_due=deadlines.schedule), classic
        )

    # -- requests --------------------------------------------------------------------------------

    async def on_heartbeat(self, request: Heartbeat) -> HeartbeatAnswer:
        """Let a member join, stay or leave; see ``CoordinatedGroup.heartbeat``."""
        self._counts.heartbeats += 1
        self.classic.check_other_kind(request.group_id)
        return await self._group(request.group_id).heartbeat(request)

    async def on_delete(self, request: GroupDeleteRequest) -> Done:
        """Delete a group for a client of any node; see ``delete``."""
        # The request may come from another node: the audit entry must name the principal that called there.
        asked = on_behalf.principal.set("" if request.principal is UNSET else request.principal)
        try:
            await self.delete(request.group_id)
        finally:
            on_behalf.principal.reset(asked)
        return Done()

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets, for the principal of the present request.

        Raises:
            NotCoordinatorError: this broker is fenced or registered again; nothing was deleted.
            GroupNotEmptyError: a classic group has members that wait for its first generation.
            MilenaError of another kind: the refusal of the state machine or the quorum.
        """
        version = self._node.metadata.image.coordinators_version
        await self._settle_classic(group_id)
        command = DeleteGroup(
            broker_id=self._node.metadata.node_id,
            broker_epoch=self._node.membership.broker_epoch,
            group_id=group_id,
            coordinators_version=version,
        )
        try:
            await self._node.metadata.propose(command, timeout_ms=PROPOSE_MS)
        except FencedError as error:
            # A fenced broker coordinates nothing. This error lets the calling node look for the coordinator again.
            raise NotCoordinatorError(f"{error.message} Nothing was deleted.") from error

    async def _settle_classic(self, group_id: str) -> None:
        """Wait until the image knows that the last member of a classic group has left."""
        group = self.classic.known(group_id)
        if group is None:
            return
        await group.settled()
        if group.member_count:
            raise GroupNotEmptyError(
                f"group {group_id!r} has {group.member_count} members; stop them first"
            )

    def classic_group(self, group_id: str) -> CoordinatedClassicGroup:
        """Return the classic group, on its coordinator.

        Raises:
            NotCoordinatorError: this node does not coordinate the group, or not now.
            InconsistentGroupProtocolError: it is a server group with members.
            GroupLimitError: there are too many groups.
            FeatureLevelError: a node is of a release without classic groups.
        """
        self._check(group_id)
        if self._node.metadata.image.feature_level < group_rules.CLASSIC_LEVEL:
            raise FeatureLevelError(
                f"classic groups need feature level {group_rules.CLASSIC_LEVEL}: upgrade every node first"
            )
        present = self._coordinated.get(group_id)
        group = self._node.metadata.image.groups.get(group_id)
        if (group is not None and group.members) or (present is not None and not present.is_idle):
            raise InconsistentGroupProtocolError(
                f"group {group_id!r} has members that use Milena's own protocol: stop them first, or use another group"
            )
        return self.classic.group(group_id)

    # -- REST consumers --------------------------------------------------------------------------

    def use_rest_members(self, rest_members: RestMembers) -> None:
        """Set the object to ask before a REST consumer loses partitions."""
        self._rest_members = rest_members

    async def settle(self, group_id: str, instance: str) -> None:
        """Make the consumer's membership match its subscription, and return then; see ``rest_members``.

        Raises:
            NotCoordinatorError, NoQuorumError: nothing was changed.
            InvalidRequestError, LimitReachedError: the consumer cannot be a member; nothing was changed.
            FateUnknownError: the membership may be changed.
        """
        self.classic.check_other_kind(group_id)
        await self._group(group_id).settle(instance)

    def look(self, group_id: str) -> None:
        """Work out the group again, because one of its consumers can release partitions now."""
        group = self._coordinated.get(group_id)
        if group is not None:
            group.kick()

    def __len__(self) -> int:
        """Return the number of groups that are coordinated here."""
        return len(self._coordinated)

    # -- groups ----------------------------------------------------------------------------------

    def _group(self, group_id: str) -> CoordinatedGroup:
        """Return the group, on its coordinator.

        Raises:
            NotCoordinatorError: this node does not coordinate the group, or not now.
        """
        self._check(group_id)
        group = self._coordinated.get(group_id)
        if group is None:
            # Created also for a group that is not in the image: its first member joins through this object.
            group = self._coordinated[group_id] = CoordinatedGroup(group_id, self._context)
            self._asked_for.add(group_id)
        return group

    def _check(self, group_id: str) -> None:
        self._calls.check(group_id)
        if self._is_closed:
            raise NotCoordinatorError("this node is stopping; nothing was done")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._node.counts.contained.report(EntryPoint.TASK, error, "task", "group")

    # -- the image -------------------------------------------------------------------------------

    def on_image(self, image: Image) -> None:
        """Adopt changes of coordinators, of partitions to assign, and of groups."""
        if self._is_closed:
            return
        if image.brokers is not self._brokers:
            self._brokers = image.brokers
            self._recast(image)
            self._is_audit_due = True
        # Topics also change by their configs. Only if the partitions changed too, a topic was created, deleted or
        # extended. Without this condition each change of a config would work out the assignment of every group.
        has_other_topics = (
            image.topics is not self._topics and image.partitions is not self._partitions
        )
        self._topics, self._partitions = image.topics, image.partitions
        if has_other_topics:
            for group in self._coordinated.values():
                group.kick()
        if image.groups is not self._groups:
            self._groups = image.groups
            self._is_audit_due = True

    def _recast(self, image: Image) -> None:
        """Drop the groups that other brokers coordinate now, and take over those of this broker."""
        if image.coordinators_version > self._version + 1:
            # Images were skipped. Another broker may have coordinated any of the groups in between, and what this node
            # remembers of them may be outdated.
            self._drop_all()
        self._version = image.coordinators_version
        node_id = self._node.metadata.node_id
        me = image.brokers.get(node_id)
        coordinators = Coordinators(image)

        def is_ours(group_id: str) -> bool:
            # The image may still have this broker's former process. Its successor coordinates only under its own epoch.
            is_here = me is not None and me.broker_epoch == self._node.membership.broker_epoch
            return is_here and coordinators.of(group_id) == node_id

        for group_id in [group_id for group_id in self._coordinated if not is_ours(group_id)]:
            self._drop(group_id)
        self.classic.take_over(image, is_ours)
        # Take groups over now, not with their first heartbeat: if all members of a group are dead, no heartbeat comes,
        # and they would never expire. The former coordinator may also have left REST consumers half settled.
        for group_id, instances in _to_settle(image).items():
            if group_id not in self._coordinated and is_ours(group_id):
                group = self._coordinated[group_id] = CoordinatedGroup(group_id, self._context)
                # Its targets may be outdated: topics may have changed while the group had no coordinator.
                group.mark_dirty()
                for instance in instances:
                    group.settle_soon(instance)

    def _drop_all(self) -> None:
        for group_id in list(self._coordinated):
            self._drop(group_id)
        self.classic.drop_all()

    def _drop(self, group_id: str) -> None:
        self._coordinated.pop(group_id).close()
        self._deadlines.forget(group_id)

    # -- time ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Expire members, and retry failed work, until cancelled."""
        before_ms = self._node.clock.now_ms()
        while True:
            # Rest only with a lease: after ``_give_up`` there are no groups, and a tick must soon see the lease return.
            is_resting = self._was_led and not self._coordinated and not self.classic
            tick_ms = RESTING_TICK_MS if is_resting else TICK_MS
            await self._node.clock.sleep(tick_ms)
            now_ms = self._node.clock.now_ms()
            is_led = self._node.membership.has_lease
            # After a stall or without a lease, silence proves nothing: heartbeats may wait in this node's sockets, or
            # were refused. So extend sessions before anything may expire in the tick below.
            if is_led and (not self._was_led or now_ms - before_ms > tick_ms + STALL_MS):
                self._extend(now_ms)
            if self._was_led and not is_led:
                self._give_up()
            self._was_led, before_ms = is_led, now_ms
            if is_led:
                self._tick(now_ms)

    def _extend(self, now_ms: MonotonicMs) -> None:
        for group in self._coordinated.values():
            group.sessions.extend(now_ms)
        self.classic.extend(now_ms)

    def _give_up(self) -> None:
        """Drop all groups, so that no call waits at a node that may not coordinate them any more.

        The groups come back with the lease.
        """
        self._drop_all()
        # Unequal to any image's brokers, so that the first tick with a lease takes the groups over again.
        self._brokers = Map()

    def _tick(self, now_ms: MonotonicMs) -> None:
        if self._brokers is not self._node.metadata.image.brokers:
            self.on_image(self._node.metadata.image)
        if self._is_audit_due:
            self._audit()
        self._drop_asked_for_in_vain()
        for group_id in self._deadlines.due(now_ms):
            if (group := self._coordinated.get(group_id)) is not None:
                group.expire(now_ms)
        self.classic.tick(now_ms)
        for group in self._coordinated.values():
            if group.is_dirty:
                group.kick()

    def _audit(self) -> None:
        """Adopt changes of groups that other commands made, such as deletions of consumers and topics; count groups."""
        self._is_audit_due = False
        for group_id, group in list(self._coordinated.items()):
            group.look()
            # A deleted topic or consumer changed the group behind its writer: its targets must be worked out again.
            if group.is_overtaken:
                group.kick()
            if group.is_idle:
                self._drop(group_id)
        self._counts.groups = len(self._coordinated) + len(self.classic)
        self._counts.members = self.classic.member_count + sum(
            len(group.state.members)
            for group in self._coordinated.values()
            if group.state is not None
        )

    def _drop_asked_for_in_vain(self) -> None:
        """Drop the idle groups that calls created since the last tick.

        Clients may name any number of groups that do not exist. Such calls change no image, so no audit would drop
        these objects, and they would fill the memory.
        """
        asked_for, self._asked_for = self._asked_for, set()
        for group_id in asked_for:
            group = self._coordinated.get(group_id)
            if group is None or not group.is_idle:
                continue
            self._drop(group_id)

    async def close(self) -> None:
        """Answer all waiting calls, and stop."""
        self._is_closed = True
        # Before the tasks are cancelled, so that waiting calls get NotCoordinatorError and find the next coordinator.
        self._drop_all()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _to_settle(image: Image) -> dict[str, list[str]]:
    """Return the groups that have members or should have some, with the REST consumers to settle in each.

    These are the consumers that are members, and those that subscribe and should be members.
    """
    # Both sides count: a member whose consumer was deleted must leave, a consumer that is no member yet must join.
    found = {
        group.group_id: [member.member_id for member in group.members if member.is_rest]
        for group in image.groups.values()
        if group.members
    }
    for (group_id, instance), consumer in image.consumers.items():
        if consumer.topics or consumer.pattern is not None:
            found.setdefault(group_id, []).append(instance)
    return found
