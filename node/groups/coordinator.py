"""The coordinator of groups: those that this node coordinates now, and what time does to them.

Which groups are its own follows from the image; a group that moves here begins with full sessions, and its targets are
looked at. Without a lease nothing is decided, and after a pause of its own, or a time without a lease, everybody gets
full sessions again: who was silent may not have been heard.
"""

import asyncio
import heapq
import itertools
from collections.abc import Coroutine
from concurrent.futures import Executor

from immutables import Map
from msgspec import UNSET

from http_api.access import on_behalf
from milena.model.clock import Clock
from milena.model.contained import ContainedErrors, EntryPoint
from milena.model.errors import FencedError, NotCoordinatorError
from milena.model.types import MonotonicMs
from node.control.standing import Standing
from node.groups.coordinated_group import CoordinatedGroup
from node.groups.coordinator_calls import CoordinatorCalls
from node.groups.descriptions import TopicNames
from node.groups.group_messages import (
    GroupDeleteRequest,
    GroupHeartbeatAnswer,
    GroupHeartbeatRequest,
)
from node.groups.group_writer import GroupContext
from node.groups.member_sessions import NEVER
from node.groups.rest_members import RestMembers
from node.groups.subscriptions import Subscriptions
from node.metadata.store import MetadataStore
from node.metrics.counts import GroupCounts
from node.peers.messages import Done
from raft_meta.machine.commands import DeleteGroup
from raft_meta.machine.groups.coordinators import Coordinators
from raft_meta.machine.image import Broker, Group, Image, Partition, PartitionKey, Topic

PROPOSE_TIMEOUT_MS = 5_000
TICK_MS = 100
RESTING_TICK_MS = 500
"""Of a node that coordinates nothing: what it costs an idle node is mostly that it wakes."""
STALL_MS = 500
"""A tick that comes this much too late says that this node was not listening."""


class GroupCoordinator:
    """Groups on their coordinator. Runs on the data loop."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        calls: CoordinatorCalls,
        clock: Clock,
        pool: Executor,
        counts: GroupCounts,
        standing: Standing,
        contained: ContainedErrors,
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._counts = counts
        self._standing = standing
        self._contained = contained
        self._calls = calls
        self._rest_members: RestMembers | None = None
        self._coordinated: dict[str, CoordinatedGroup] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._due: list[tuple[MonotonicMs, int, str]] = []
        self._next_due: dict[str, MonotonicMs] = {}
        self._sequence = itertools.count()
        self._brokers: Map[int, Broker] = Map()
        self._topics: Map[str, Topic] = Map()
        self._partitions: Map[PartitionKey, Partition] = Map()
        self._groups: Map[str, Group] = Map()
        self._asked_for: set[str] = set()
        """Groups that somebody was the first to ask for since the last tick: nothing may have come of it."""
        self._is_audit_due = False
        self._was_led = False
        self._is_closed = False
        self._context = GroupContext(
            metadata=metadata,
            clock=clock,
            pool=pool,
            standing=standing,
            check=calls.check,
            names=TopicNames(lambda: metadata.image),
            subscriptions=Subscriptions(),
            counts=counts,
            rest_members=lambda: self._rest_members,
            spawn=self._spawn,
            contained=contained,
            on_due=self._schedule,
        )

    # -- what it is asked --------------------------------------------------------------------------

    async def on_heartbeat(self, request: GroupHeartbeatRequest) -> GroupHeartbeatAnswer:
        """Let a member join, stay or leave."""
        self._counts.heartbeats += 1
        return await self._group(request.group_id).heartbeat(request)

    async def on_delete(self, request: GroupDeleteRequest) -> Done:
        """Forget a group without members, and its offsets."""
        command = DeleteGroup(
            broker_id=self._metadata.node_id,
            broker_epoch=self._standing.broker_epoch,
            group_id=request.group_id,
        )
        asked = on_behalf.principal.set("" if request.principal is UNSET else request.principal)
        try:
            await self._metadata.propose(command, timeout_ms=PROPOSE_TIMEOUT_MS)
        except FencedError as error:
            raise NotCoordinatorError(f"{error.message} Nothing was deleted.") from error
        finally:
            on_behalf.principal.reset(asked)
        return Done()

    # -- REST consumers --------------------------------------------------------------------------

    def use_rest_members(self, rest_members: RestMembers) -> None:
        """Ask these before one of them loses partitions."""
        self._rest_members = rest_members

    async def settle(self, group_id: str, instance: str) -> None:
        """Return once the consumer is the member of its group that its subscription says; see ``rest_members``.

        Raises:
            NotCoordinatorError, NoQuorumError: nothing was changed.
            InvalidRequestError, LimitReachedError: it cannot be a member; nothing was changed.
            FateUnknownError: it may be changed.
        """
        await self._group(group_id).settle(instance)

    def look(self, group_id: str) -> None:
        """A consumer has let go of what kept it from releasing partitions."""
        group = self._coordinated.get(group_id)
        if group is not None:
            group.kick()

    def __len__(self) -> int:
        """Groups that are coordinated here."""
        return len(self._coordinated)

    # -- groups ----------------------------------------------------------------------------------

    def _group(self, group_id: str) -> CoordinatedGroup:
        """The group, on its coordinator.

        Raises:
            NotCoordinatorError: not here, or not now.
        """
        self._calls.check(group_id)
        if self._is_closed:
            raise NotCoordinatorError("this node is stopping; nothing was done")
        group = self._coordinated.get(group_id)
        if group is None:
            group = self._coordinated[group_id] = CoordinatedGroup(group_id, self._context)
            self._asked_for.add(group_id)
        return group

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._contained.report(EntryPoint.TASK, error, "task", "group")

    def _schedule(self, group_id: str, due_ms: MonotonicMs) -> None:
        """Sessions only grow while a group is not looked at, so an early look is enough."""
        known = self._next_due.get(group_id, NEVER)
        if due_ms < known:
            self._next_due[group_id] = due_ms
            heapq.heappush(self._due, (due_ms, next(self._sequence), group_id))

    # -- the image -------------------------------------------------------------------------------

    def on_image(self, image: Image) -> None:
        """Follow who coordinates what, and what there is to share out."""
        if self._is_closed:
            return
        if image.brokers is not self._brokers:
            self._brokers = image.brokers
            self._recast(image)
            self._is_audit_due = True
        # Without a change of partitions no topic came, went or grew: only configs, and each group would be shared out
        # anew for nothing.
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
        """Brokers came or went: give up what others coordinate, take over what is ours."""
        node_id = self._metadata.node_id
        me = image.brokers.get(node_id)
        coordinators = Coordinators(image)

        def is_ours(group_id: str) -> bool:
            is_here = me is not None and me.broker_epoch == self._standing.broker_epoch
            return is_here and coordinators.of(group_id) == node_id

        for group_id in [group_id for group_id in self._coordinated if not is_ours(group_id)]:
            self._drop(group_id)
        for group_id, instances in _to_settle(image).items():
            if group_id not in self._coordinated and is_ours(group_id):
                group = self._coordinated[group_id] = CoordinatedGroup(group_id, self._context)
                group.mark_dirty()
                for instance in instances:
                    group.settle_soon(instance)

    def _drop(self, group_id: str) -> None:
        self._coordinated.pop(group_id).close()
        self._next_due.pop(group_id, None)

    # -- time ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Expire members, and try again what failed, until cancelled."""
        before_ms = self._clock.now_ms()
        while True:
            is_resting = self._was_led and not self._coordinated
            tick_ms = RESTING_TICK_MS if is_resting else TICK_MS
            await self._clock.sleep(tick_ms)
            now_ms = self._clock.now_ms()
            is_led = self._standing.has_lease
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

    def _give_up(self) -> None:
        """Nobody waits at a coordinator that cannot know whether it is one; the groups come back with the lease."""
        for group_id in list(self._coordinated):
            self._drop(group_id)
        self._brokers = Map()

    def _tick(self, now_ms: MonotonicMs) -> None:
        if self._brokers is not self._metadata.image.brokers:
            self.on_image(self._metadata.image)
        if self._is_audit_due:
            self._audit()
        self._drop_asked_for_in_vain()
        while self._due and self._due[0][0] <= now_ms:
            due_ms, _, group_id = heapq.heappop(self._due)
            if self._next_due.get(group_id) == due_ms:
                del self._next_due[group_id]
                if (group := self._coordinated.get(group_id)) is not None:
                    group.expire(now_ms)
        for group in self._coordinated.values():
            if group.is_dirty:
                group.kick()

    def _audit(self) -> None:
        """Groups change also by what others do: consumers and topics that are deleted."""
        self._is_audit_due = False
        for group_id, group in list(self._coordinated.items()):
            group.look()
            if group.is_overtaken:
                group.kick()
            if group.is_idle:
                self._drop(group_id)
        self._counts.groups = len(self._coordinated)
        self._counts.members = sum(
            len(group.state.members)
            for group in self._coordinated.values()
            if group.state is not None
        )

    def _drop_asked_for_in_vain(self) -> None:
        """Anybody may name any number of groups that are not there, and nothing that is there changes by that."""
        asked_for, self._asked_for = self._asked_for, set()
        for group_id in asked_for:
            group = self._coordinated.get(group_id)
            if group is None or not group.is_idle:
                continue
            self._drop(group_id)

    async def close(self) -> None:
        """Answer who waits, and stop."""
        self._is_closed = True
        for group_id in list(self._coordinated):
            self._drop(group_id)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _to_settle(image: Image) -> dict[str, list[str]]:
    """Groups with members, or that shall have some; and the REST consumers that are in them or shall be."""
    found = {
        group.group_id: [member.member_id for member in group.members if member.is_rest]
        for group in image.groups.values()
        if group.members
    }
    for (group_id, instance), consumer in image.consumers.items():
        if consumer.topics or consumer.pattern is not None:
            found.setdefault(group_id, []).append(instance)
    return found
