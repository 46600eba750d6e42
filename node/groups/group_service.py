"""Consumer groups on any node: pass decisions on to the coordinator, and read the rest from the image.

No response comes from an image that may be behind. Offsets, descriptions and lists are read after a barrier, so that
each node sees everything that any node has acknowledged.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from msgspec import UNSET, structs

from http_api.access import on_behalf
from http_api.ports.groups import (
    GroupDescription,
    GroupHead,
    Heartbeat,
    HeartbeatAnswer,
    OffsetToCommit,
    PartitionCommit,
    Reset,
    ResetTarget,
    TopicOffset,
    TopicPartition,
    topic_id_of,
)
from milena.model.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConsumerError,
    OffsetOutOfRangeError,
    RequestTooLargeError,
    TopicNotFoundError,
)
from milena.model.requests import FetchRequest, FetchResult
from milena.model.turns import one_turn
from node.config.budgets import BARRIER_MS
from node.context import NodeContext
from node.groups.coordinator_calls import CoordinatorCalls, Repeat
from node.groups.descriptions import describe, head_of, offsets_of
from node.groups.group_messages import (
    COMMIT,
    DELETE,
    HEARTBEAT,
    GroupCommitRequest,
    GroupDeleteRequest,
    OffsetRow,
)
from node.groups.members import SESSION_MS_MAX
from node.metadata.lookup import GetTopic, check_partition, topic_to_commit
from raft_meta.machine.groups import group_rules
from raft_meta.machine.groups.coordinators import Coordinators
from raft_meta.machine.image import Image, Topic

FETCH_TIMEOUT_MS = 0
OWNED_MAX = group_rules.OFFSETS_PER_COMMIT_MAX
LOOKS_AT_ONCE = 32
"""The most partitions whose leaders are asked at the same time when offsets are reset."""
STEP = 1_000
"""Groups that are described in one turn of the loop, which takes a millisecond or two."""

Fetch = Callable[[FetchRequest], Awaitable[FetchResult]]


class GroupService:
    """Implements ``http_api.ports.groups.GroupsPort``."""

    def __init__(
        self,
        node: NodeContext,
        *,
        calls: CoordinatorCalls,
        topic: GetTopic,
        fetch: Fetch,
        new_member_id: Callable[[], str],
    ) -> None:
        self._node = node
        self._calls = calls
        self._topic = topic
        self._fetch = fetch
        self._new_member_id = new_member_id

    # -- members ---------------------------------------------------------------------------------

    async def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatAnswer:
        """Join, stay or leave. A member without an id gets one here, so that a repeated call joins only once."""
        group_rules.check_group_id(heartbeat.group_id)
        if sum(len(numbers) for _, numbers in heartbeat.owned or ()) > OWNED_MAX:
            raise RequestTooLargeError(f"a heartbeat names at most {OWNED_MAX} owned partitions")
        if not heartbeat.member_id:
            if heartbeat.member_epoch != 0:
                raise InvalidConsumerError(
                    "a heartbeat without member_id joins the group: member_epoch must be 0"
                )
            heartbeat = structs.replace(heartbeat, member_id=self._new_member_id())
        if heartbeat.wait_ms > SESSION_MS_MAX:
            heartbeat = structs.replace(heartbeat, wait_ms=SESSION_MS_MAX)
        return await self._calls.call(HEARTBEAT, heartbeat, repeat=Repeat.ALWAYS)

    # -- offsets ---------------------------------------------------------------------------------

    async def commit(
        self,
        group: str,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> None:
        """Commit all of these offsets, or none."""
        group_rules.check_group_id(group)
        if len(offsets) > group_rules.OFFSETS_PER_COMMIT_MAX:
            raise RequestTooLargeError(
                f"one commit has at most {group_rules.OFFSETS_PER_COMMIT_MAX} offsets, not {len(offsets)}"
            )
        topics = await self._topics_of(offsets)
        try:
            await self._commit(group, offsets, topics, member_id, member_epoch)
        except TopicNotFoundError:
            # The coordinator knows the topic of this id no more. By now its name may belong to another topic, of which
            # this node's image did not show anything.
            await self._node.metadata.current_image()
            present = await self._topics_of(offsets)
            if all(present[name].topic_id == topic.topic_id for name, topic in topics.items()):
                raise
            await self._commit(group, offsets, present, member_id, member_epoch)

    async def _topics_of(self, offsets: Sequence[OffsetToCommit]) -> dict[str, Topic]:
        """Return the topics of the offsets by name, as far as this node knows.

        Raises:
            TopicNotFoundError, PartitionNotFoundError: one of them does not exist.
        """
        topics: dict[str, Topic] = {}
        for row in offsets:
            known, topic_id = topics.get(row.topic), topic_id_of(row)
            if (
                known is None
                or row.partition >= known.partition_count
                or not known.topic_id.startswith(topic_id)
            ):
                topics[row.topic] = await topic_to_commit(
                    self._topic, row.topic, row.partition, topic_id
                )
            check_partition(topics[row.topic], row.partition)
        return topics

    async def _commit(
        self,
        group: str,
        offsets: Sequence[OffsetToCommit],
        topics: Mapping[str, Topic],
        member_id: str | None,
        member_epoch: int,
    ) -> None:
        # If a partition is named twice, the last offset counts.
        rows = {
            (row.topic, row.partition): OffsetRow(
                topic_id=topics[row.topic].topic_id,
                partition=row.partition,
                offset=row.offset,
                leader_epoch=row.leader_epoch,
                metadata=row.metadata,
            )
            for row in offsets
        }
        await self._calls.call(
            COMMIT,
            GroupCommitRequest(
                group_id=group,
                member_id=member_id,
                member_epoch=member_epoch,
                offsets=tuple(rows.values()),
            ),
            # A commit that is carried out late must not move the group back.
            repeat=Repeat.ELSEWHERE,
        )

    async def committed(
        self, group: str, partitions: Sequence[TopicPartition] | None = None
    ) -> Sequence[PartitionCommit]:
        """Return the offsets that are committed now; ``partitions`` None: all of them."""
        image, _ = await self._current(group)
        return offsets_of(image, group, None if partitions is None else frozenset(partitions))

    async def reset(
        self, group: str, topic: str, partitions: Sequence[int] | None, target: ResetTarget
    ) -> Sequence[PartitionCommit]:
        """Commit the offsets of ``target`` for a group without members, and return them."""
        group_rules.check_group_id(group)
        await self._check_empty(group)
        found = await self._topic(topic, max(partitions or (0,)))
        wanted = range(found.partition_count) if partitions is None else sorted(set(partitions))
        for partition in wanted:
            check_partition(found, partition)
        # Leaders report offsets of the topic that they know. The topic may be deleted and created again meanwhile.
        offsets = [
            TopicOffset(
                topic=topic,
                partition=row.partition,
                offset=row.offset,
                topic_id=found.topic_id,
            )
            for row in await self.places(topic, wanted, target)
        ]
        await self.commit(group, offsets)
        return await self.committed(group, [(row.topic, row.partition) for row in offsets])

    async def _check_empty(self, group: str) -> None:
        """Refuse a group with members early, before many leaders are asked; the commit decides."""
        image = await self._node.metadata.barrier(timeout_ms=BARRIER_MS)
        known = image.groups.get(group)
        if known is not None and known.member_count:
            raise GroupNotEmptyError(
                f"group {group!r} has {known.member_count} members; stop them before its offsets are reset"
            )

    async def places(
        self, topic: str, partitions: Collection[int], target: ResetTarget
    ) -> Sequence[OffsetToCommit]:
        """Return the offsets to which a reset would set a group, as the partitions' leaders report them."""
        gate = asyncio.Semaphore(LOOKS_AT_ONCE)

        async def place(partition: int) -> OffsetToCommit:
            async with gate:
                offset = await self._place(topic, partition, target)
                return OffsetToCommit(topic=topic, partition=partition, offset=offset)

        places = await asyncio.gather(*map(place, partitions), return_exceptions=True)
        found: list[OffsetToCommit] = []
        for result in places:
            if isinstance(result, BaseException):
                raise result
            found.append(result)
        return found

    async def _place(self, topic: str, partition: int, target: ResetTarget) -> int:
        """Return the offset that ``target`` means in a partition.

        Raises:
            OffsetOutOfRangeError: the offset is above the high watermark.
        """
        is_earliest = target.name is Reset.EARLIEST
        result = await self._fetch(
            FetchRequest(
                topic=topic,
                partition=partition,
                offset="earliest" if is_earliest else "latest",
                timestamp_ms=target.timestamp_ms,
                max_bytes=1,
                timeout_ms=FETCH_TIMEOUT_MS,
                is_local=False,
            )
        )
        if target.offset is None:
            return result.start_offset
        if target.offset > result.high_watermark:
            raise OffsetOutOfRangeError(
                f"offset {target.offset} of {topic}-{partition} is above its end, {result.high_watermark}; "
                "no offset was committed"
            )
        # Records below the log start are deleted: a reader from that start gets the same records.
        return max(target.offset, result.log_start_offset)

    # -- groups ----------------------------------------------------------------------------------

    async def _current(self, group: str) -> tuple[Image, Coordinators]:
        group_rules.check_group_id(group)
        image = await self._node.metadata.barrier(timeout_ms=BARRIER_MS)
        if group not in image.groups:
            raise GroupNotFoundError(f"there is no consumer group {group!r}")
        return image, Coordinators(image)

    async def describe(self, group: str) -> GroupDescription:
        """Return the group with its members and offsets."""
        image, coordinators = await self._current(group)
        return describe(image, image.groups[group], coordinators)

    async def groups(self) -> Sequence[GroupHead]:
        """Return all groups without their members and offsets, in steps of ``STEP``."""
        image = await self._node.metadata.barrier(timeout_ms=BARRIER_MS)
        coordinators, heads = Coordinators(image), []
        for at, group_id in enumerate(sorted(image.groups), 1):
            heads.append(head_of(image.groups[group_id], coordinators))
            if at % STEP == 0:
                await one_turn()
        return heads

    async def delete(self, group: str) -> None:
        """Delete the group and its offsets."""
        group_rules.check_group_id(group)
        principal = on_behalf.principal.get() or UNSET
        request = GroupDeleteRequest(group_id=group, principal=principal)
        await self._calls.call(DELETE, request, repeat=Repeat.NEVER)
