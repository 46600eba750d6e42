"""Consumer groups and REST consumers in memory behind the ports of the API: one node, without rebalances."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from http_api.ports.groups import (
    ConsumerSubscription,
    Delivered,
    DeliveredRecords,
    GroupDescription,
    GroupState,
    Heartbeat,
    HeartbeatAnswer,
    MemberDescription,
    NewConsumer,
    OffsetToCommit,
    PartitionCommit,
    Reset,
    ResetTarget,
    Seek,
    TopicPartition,
    by_topic,
    no_consumer,
)
from milena.model.batch.header import decode_header
from milena.model.errors import (
    ConsumerExistsError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConsumerError,
    MemberNotFoundError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    StaleMemberEpochError,
    SubscriptionConflictError,
)

if TYPE_CHECKING:
    from tests.support.fakes.ports import FakeLog, FakeNode

COMMIT_MS = 1_700_000_000_001
INTERVAL_MS = 3000
SESSION_MS = range(1000, 300_001)


@dataclass
class FakeGroup:
    """The group's members, in the order in which they joined, and its committed offsets."""

    generation: int = 0
    members: dict[str, MemberDescription] = field(default_factory=dict)
    offsets: dict[TopicPartition, PartitionCommit] = field(default_factory=dict)


class FakeGroups:
    """An implementation of ``GroupsPort``. Partitions are assigned at once: no member has to release any first."""

    def __init__(self, node: "FakeNode") -> None:
        self._node = node
        self.known: dict[str, FakeGroup] = {}
        self.heartbeats: list[Heartbeat] = []
        self._numbers = itertools.count(1)

    def find(self, group: str) -> FakeGroup:
        found = self.known.get(group)
        if found is None:
            raise GroupNotFoundError(f"Group '{group}' does not exist.")
        return found

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        self._node.fail("group_heartbeat")
        self.heartbeats.append(heartbeat)
        group = heartbeat.group_id
        session_ms = heartbeat.session_timeout_ms
        if session_ms is not None and session_ms not in SESSION_MS:
            raise InvalidConsumerError(f"session_timeout_ms is {session_ms}.")
        member_id = heartbeat.member_id or f"member-{next(self._numbers)}"
        if heartbeat.member_epoch == 0:
            topics = heartbeat.topics or ()
            self.join(group, member_id, topics, heartbeat.pattern, heartbeat=heartbeat)
        else:
            self._check_member(group, member_id, heartbeat.member_epoch)
        if heartbeat.member_epoch < 0:
            self.leave(group, member_id)
            return self._answer(group, member_id, -1, ())
        found = self.known[group]
        return self._answer(group, member_id, found.generation, found.members[member_id].assignment)

    def _answer(
        self, group: str, member_id: str, epoch: int, assignment: Sequence[TopicPartition]
    ) -> HeartbeatAnswer:
        return HeartbeatAnswer(
            member_id=member_id,
            member_epoch=epoch,
            generation=self.known[group].generation,
            heartbeat_interval_ms=INTERVAL_MS,
            assignment=by_topic(assignment),
            pending=(),
        )

    def _check_member(self, group: str, member_id: str, epoch: int) -> None:
        found = self.known.get(group)
        if found is None or member_id not in found.members:
            raise MemberNotFoundError(f"Group '{group}' has no member '{member_id}'.")
        if epoch not in (-1, found.generation):
            raise StaleMemberEpochError(f"Epoch {epoch} of '{member_id}' is not the current one.")

    def join(
        self,
        group: str,
        member_id: str,
        topics: Iterable[str],
        pattern: str | None,
        *,
        is_rest: bool = False,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        found = self.known.setdefault(group, FakeGroup())
        found.members[member_id] = MemberDescription(
            member_id=member_id,
            instance_id=None if heartbeat is None else heartbeat.instance_id,
            client_id="" if heartbeat is None else heartbeat.client_id,
            host="" if heartbeat is None else heartbeat.host,
            is_rest=is_rest,
            topics=sorted(topics),
            pattern=pattern,
            member_epoch=0,
            assignment=(),
            revoking=(),
            pending=(),
        )
        self._share_out(found)

    def leave(self, group: str, member_id: str) -> None:
        found = self.known[group]
        if found.members.pop(member_id, None) is not None:
            self._share_out(found)

    def _share_out(self, group: FakeGroup) -> None:
        group.generation += 1
        for place, (member_id, member) in enumerate(list(group.members.items())):
            mine = [
                (topic.name, partition)
                for topic in sorted(self._node.image.topics.values(), key=lambda t: t.name)
                if topic.name in member.topics or member.pattern is not None
                for partition in range(topic.partition_count)
            ]
            group.members[member_id] = replace(
                member,
                member_epoch=group.generation,
                assignment=mine[place :: len(group.members)],
            )

    async def commit(
        self,
        group: str,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> None:
        self._node.fail("group_commit")
        found = self.known.get(group)
        if member_id is not None:
            self._check_member(group, member_id, member_epoch)
        elif found is not None and found.members:
            raise GroupNotEmptyError(f"Group '{group}' has members.")
        self.put(group, offsets)

    def put(self, group: str, offsets: Sequence[OffsetToCommit]) -> Sequence[PartitionCommit]:
        made = []
        for offset in offsets:
            self._node.log(offset.topic, offset.partition)
            made.append(
                PartitionCommit(
                    topic=offset.topic,
                    partition=offset.partition,
                    offset=offset.offset,
                    leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                    commit_ms=COMMIT_MS,
                )
            )
        found = self.known.setdefault(group, FakeGroup())
        found.offsets |= {(offset.topic, offset.partition): offset for offset in made}
        return made

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition] | None = None
    ) -> Sequence[PartitionCommit]:
        self._node.fail("group_committed")
        offsets = self.find(group).offsets
        keys = offsets if partitions is None else partitions
        return [offsets[key] for key in keys if key in offsets]

    async def describe(self, group: str) -> GroupDescription:
        self._node.fail("group_describe")
        found = self.find(group)
        return GroupDescription(
            group_id=group,
            state=GroupState.STABLE if found.members else GroupState.EMPTY,
            generation=found.generation,
            assignor="sticky" if found.generation else "",
            coordinator=self._node.coordinator,
            member_count=len(found.members),
            members=list(found.members.values()),
            offsets=list(found.offsets.values()),
        )

    async def groups(self) -> Sequence[GroupDescription]:
        self._node.fail("group_groups")
        return [await self.describe(group) for group in sorted(self.known)]

    async def delete(self, group: str) -> None:
        self._node.fail("group_delete")
        if self.find(group).members:
            raise GroupNotEmptyError(f"Group '{group}' has members.")
        del self.known[group]

    async def reset(
        self, group: str, topic: str, partitions: Sequence[int] | None, target: ResetTarget
    ) -> Sequence[PartitionCommit]:
        self._node.fail("group_reset")
        if group in self.known and self.known[group].members:
            raise GroupNotEmptyError(f"Group '{group}' has members.")
        if partitions is None:
            partitions = range((await self._node.topic(topic)).partition_count)
        return self.put(group, await self.places(topic, partitions, target))

    async def places(
        self, topic: str, partitions: Sequence[int], target: ResetTarget
    ) -> Sequence[OffsetToCommit]:
        self._node.fail("group_places")
        return [
            OffsetToCommit(
                topic=topic, partition=p, offset=place_of(self._node.log(topic, p), target)
            )
            for p in partitions
        ]


def place_of(log: "FakeLog", target: ResetTarget | Seek) -> int:
    """Return the offset that a target or seek means."""
    if target.timestamp_ms is not None:
        headers = [decode_header(batch) for batch in log.batches]
        later = (h.base_offset for h in headers if h.max_timestamp_ms >= target.timestamp_ms)
        return next(later, log.high_watermark)
    if target.name is not None:
        is_first = target.name is Reset.EARLIEST
        return log.log_start_offset if is_first else log.high_watermark
    assert target.offset is not None
    if target.offset > log.high_watermark:
        raise OffsetOutOfRangeError(
            f"offset {target.offset} is above the end, {log.high_watermark}"
        )
    return max(target.offset, log.log_start_offset)


@dataclass
class FakeConsumer:
    """One consumer, and its positions."""

    settings: NewConsumer
    topics: Sequence[str] = ()
    pattern: str | None = None
    assigned: Sequence[TopicPartition] | None = None
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    delivered: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def is_subscribed(self) -> bool:
        return bool(self.topics) or self.pattern is not None


class FakeConsumers:
    """An implementation of ``ConsumersPort``."""

    def __init__(self, node: "FakeNode", groups: FakeGroups) -> None:
        self._node = node
        self._groups = groups
        self.known: dict[tuple[str, str], FakeConsumer] = {}
        self.calls: list[tuple[int | None, int | None]] = []
        """The timeouts and limits of the calls for records."""
        self.tokens: list[str] = []
        """The tokens of the calls that may have one."""
        self.taken_back: list[tuple[str, str, Delivered]] = []
        self.refused: list[tuple[str, str, Delivered]] = []

    def _find(self, method: str, group: str, instance: str) -> FakeConsumer:
        self._node.fail(f"consumer_{method}")
        found = self.known.get((group, instance))
        if found is None:
            raise no_consumer(group, instance)
        return found

    async def create(self, group: str, consumer: NewConsumer) -> str:
        self._node.fail("consumer_create")
        instance = consumer.instance or f"rest-{len(self.known)}"
        if (group, instance) in self.known:
            raise ConsumerExistsError(f"Consumer '{instance}' exists.")
        self.known[group, instance] = FakeConsumer(consumer)
        return instance

    async def delete(self, group: str, instance: str, *, token: str = "") -> None:
        self._find("delete", group, instance)
        self.tokens.append(token)
        await self.unsubscribe(group, instance)
        del self.known[group, instance]

    async def commits_next(self, group: str, instance: str) -> bool:
        known = self.known.get((group, instance))
        return known is not None and known.settings.commits_next

    async def format_of(self, group: str, instance: str) -> str:
        return self._find("format_of", group, instance).settings.format

    async def subscribe(
        self,
        group: str,
        instance: str,
        topics: Sequence[str],
        pattern: str | None,
        *,
        token: str = "",
    ) -> None:
        consumer = self._find("subscribe", group, instance)
        self.tokens.append(token)
        if consumer.assigned is not None or bool(topics) == (pattern is not None):
            raise SubscriptionConflictError(
                "Subscriptions to topics, partitions, and patterns are mutually exclusive."
            )
        consumer.topics, consumer.pattern = topics, pattern
        self._groups.join(group, instance, topics, pattern, is_rest=True)

    async def unsubscribe(self, group: str, instance: str, *, token: str = "") -> None:
        consumer = self._find("unsubscribe", group, instance)
        self.tokens.append(token)
        if consumer.is_subscribed:
            self._groups.leave(group, instance)
        consumer.topics, consumer.pattern, consumer.assigned = (), None, None

    def _assigned(self, group: str, instance: str) -> Sequence[TopicPartition]:
        consumer = self.known[group, instance]
        if consumer.is_subscribed:
            return self._groups.known[group].members[instance].assignment
        return consumer.assigned or ()

    async def subscription(self, group: str, instance: str) -> ConsumerSubscription:
        consumer = self._find("subscription", group, instance)
        return ConsumerSubscription(
            topics=consumer.topics,
            pattern=consumer.pattern,
            partitions=self._assigned(group, instance),
        )

    async def assign(
        self, group: str, instance: str, partitions: Sequence[TopicPartition], *, token: str = ""
    ) -> None:
        consumer = self._find("assign", group, instance)
        self.tokens.append(token)
        if consumer.is_subscribed:
            raise SubscriptionConflictError("It is subscribed.")
        for where in partitions:
            self._node.log(*where)
        consumer.assigned = partitions

    async def assignments(self, group: str, instance: str) -> Sequence[TopicPartition]:
        self._find("assignments", group, instance)
        return self._assigned(group, instance)

    async def seek(self, group: str, instance: str, seeks: Sequence[Seek]) -> None:
        consumer = self._find("seek", group, instance)
        for seek in seeks:
            where = (seek.topic, seek.partition)
            if where not in self._assigned(group, instance):
                raise SubscriptionConflictError(f"No current assignment for partition {where}")
            consumer.positions[where] = place_of(self._node.log(*where), seek)

    async def records(
        self,
        group: str,
        instance: str,
        *,
        timeout_ms: int | None,
        max_bytes: int | None,
        token: str = "",
    ) -> Delivered:
        consumer = self._find("records", group, instance)
        self.tokens.append(token)
        self.calls.append((timeout_ms, max_bytes))
        if not consumer.is_subscribed and consumer.assigned is None:
            raise SubscriptionConflictError("Consumer is not subscribed or assigned.")
        deliveries = self._deliver(group, instance, max_bytes)
        if not deliveries:
            wait_ms = consumer.settings.request_timeout_ms if timeout_ms is None else timeout_ms
            await self._node.wait(wait_ms)
            self._find("records", group, instance)
            deliveries = self._deliver(group, instance, max_bytes)
        return Delivered(format=consumer.settings.format, deliveries=deliveries)

    def take_back(self, group: str, instance: str, delivered: Delivered) -> None:
        self.taken_back.append((group, instance, delivered))

    async def refuse(self, group: str, instance: str, delivered: Delivered) -> None:
        self.refused.append((group, instance, delivered))

    def _deliver(self, group: str, instance: str, max_bytes: int | None) -> list[DeliveredRecords]:
        consumer = self.known[group, instance]
        deliveries = []
        for where in self._assigned(group, instance):
            log = self._node.log(*where)
            start = self._position(group, consumer, where)
            end = log.high_watermark
            if max_bytes is not None and max_bytes < 10:
                end = min(end, start + 1)
            if start >= end:
                continue
            consumer.positions[where] = consumer.delivered[where] = end
            deliveries.append(
                DeliveredRecords(
                    topic=where[0],
                    partition=where[1],
                    start_offset=start,
                    end_offset=end,
                    batches=log.read(start, 1 << 30),
                )
            )
        return deliveries

    def _position(self, group: str, consumer: FakeConsumer, where: TopicPartition) -> int:
        if where in consumer.positions:
            return consumer.positions[where]
        known = self._groups.known.get(group, FakeGroup()).offsets.get(where)
        if known is not None:
            return known.offset
        log = self._node.log(*where)
        is_first = consumer.settings.auto_offset_reset == "earliest"
        consumer.positions[where] = log.log_start_offset if is_first else log.high_watermark
        return consumer.positions[where]

    async def commit(
        self, group: str, instance: str, offsets: Sequence[OffsetToCommit] | None
    ) -> None:
        consumer = self._find("commit", group, instance)
        if offsets is None:
            offsets = [
                OffsetToCommit(topic=topic, partition=partition, offset=offset)
                for (topic, partition), offset in consumer.delivered.items()
            ]
        self._groups.put(group, offsets)

    async def committed(
        self, group: str, instance: str, partitions: Sequence[TopicPartition]
    ) -> Sequence[PartitionCommit]:
        self._find("committed", group, instance)
        for where in partitions:
            if where not in self._node.logs:
                raise PartitionNotFoundError(f"There is no {where}.")
        offsets = self._groups.known.get(group, FakeGroup()).offsets
        return [offsets[where] for where in partitions if where in offsets]
