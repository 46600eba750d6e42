"""Classic groups for the listener of Kafka's protocol: each request is served by the group's coordinator itself.

A request at another node is refused with NotCoordinatorError: Kafka's clients then look for the coordinator again. None
of these calls is forwarded. Offsets are shared with server groups and with the HTTP API.
"""

from collections.abc import Awaitable, Callable, Container, Mapping, Sequence

from http_api.ports.groups import (
    OffsetToCommit,
    PartitionCommit,
    TopicPartition,
    topic_id_of,
)
from milena.model.errors import (
    FencedError,
    GroupNotFoundError,
    GroupSubscribedError,
    MilenaError,
    NotCoordinatorError,
    PartitionNotFoundError,
    StaleMemberEpochError,
    TopicNotFoundError,
)
from milena.model.turns import one_turn
from node.config.budgets import BARRIER_MS, PROPOSE_MS
from node.context import NodeContext
from node.groups.classic import consumer_protocol
from node.groups.classic.calls import (
    NO_GENERATION,
    ClassicDescription,
    ClassicOverview,
    ClassicState,
    JoinAnswer,
    JoinRequest,
    LeaveOutcome,
    LeavingMember,
    SyncAnswer,
    SyncRequest,
)
from node.groups.classic.coordinated import CoordinatedClassicGroup
from node.groups.classic.member import unknown_member
from node.groups.coordinator import GroupCoordinator
from node.groups.coordinator_calls import CoordinatorCalls
from node.groups.descriptions import is_server_group, offsets_of, server_state
from node.groups.group_offsets import CommitQueue
from raft_meta.machine.commands import DeleteOffsets, GroupCommit, OffsetCommit
from raft_meta.machine.groups import group_rules
from raft_meta.machine.groups.coordinators import coordinator_of
from raft_meta.machine.image import Group, Image
from raft_meta.machine.topics import partition_sets

GROUPS_PER_TURN = 500
"""Groups of a list after which the event loop does other work: a few milliseconds."""


class ClassicGroups:
    """Groups as Kafka's classic clients see them. Runs on the data loop.

    Each method raises NotCoordinatorError if this node does not coordinate the group; nothing was done then.
    """

    def __init__(
        self,
        node: NodeContext,
        *,
        calls: CoordinatorCalls,
        coordinator: GroupCoordinator,
        commits: CommitQueue,
    ) -> None:
        self._node = node
        self._calls = calls
        self._coordinator = coordinator
        self._commits = commits

    def find_coordinator(self, group_id: str) -> int | None:
        """Return the broker id of the group's coordinator; None if no broker can be one now. Any node answers.

        Raises:
            InvalidConsumerError: the group id is invalid.
        """
        group_rules.check_group_id(group_id)
        return coordinator_of(self._node.metadata.image, group_id)

    # -- members ---------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> JoinAnswer:
        """Let a member join; return when the next generation starts.

        Raises:
            MemberIdRequiredError: join again with the id in ``member_id``.
            MemberNotFoundError, MemberFencedError: join again without an id; stop.
            InconsistentGroupProtocolError: the group is a server group, or has no protocol in common with the member.
            InvalidConsumerError, InvalidSessionTimeoutError, GroupLimitError: refused.
            RebalanceInProgressError: the member has sent a newer join.
        """
        group_rules.check_group_id(request.group_id)
        async with self._calls.judged(request.group_id):
            return await self._coordinator.classic_group(request.group_id).join(request)

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Return the member's assignment once the leader's is stored.

        Raises:
            MemberNotFoundError, GenerationError, RebalanceInProgressError: join again.
            MemberFencedError: another process has the instance id; stop.
            InconsistentGroupProtocolError, RequestTooLargeError: refused.
        """
        async with self._calls.judged(request.group_id):
            return await self._present(request.group_id, request.member_id).sync(request)

    async def heartbeat(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> None:
        """Extend a member's session.

        Raises:
            MemberNotFoundError, GenerationError, RebalanceInProgressError: join again.
            MemberFencedError: another process has the instance id; stop.
        """
        async with self._calls.judged(group_id):
            self._present(group_id, member_id).heartbeat(member_id, generation, instance_id)

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> list[LeaveOutcome]:
        """Remove members from the group; return the result of each."""
        version = self._node.metadata.image.coordinators_version
        self._calls.check(group_id)
        if self._is_classic(group_id):
            outcomes = self._coordinator.classic_group(group_id).leave(members)
        else:
            outcomes = [
                LeaveOutcome(member=member, error=unknown_member(group_id, member.member_id))
                for member in members
            ]
        if all(outcome.error is not None for outcome in outcomes):
            await self._calls.confirm(group_id, version)
        return outcomes

    def _is_classic(self, group_id: str) -> bool:
        """Return whether the group has classic members, or ids that did not join yet."""
        group = self._node.metadata.image.groups.get(group_id)
        is_stored = group is not None and group.classic is not None
        return is_stored or self._coordinator.classic.known(group_id) is not None

    def _present(self, group_id: str, member_id: str) -> CoordinatedClassicGroup:
        self._calls.check(group_id)
        if not self._is_classic(group_id):
            # An object for each group that a client names would fill the memory.
            raise unknown_member(group_id, member_id)
        return self._coordinator.classic_group(group_id)

    # -- offsets ---------------------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str = "",
        generation: int = NO_GENERATION,
        instance_id: str | None = None,
    ) -> Mapping[TopicPartition, MilenaError]:
        """Commit offsets of existing partitions, all or none; return the reasons for those that were refused alone.

        An offset below 0 means that the group has none: the committed one is deleted, after the others are committed.
        kafkajs resets a group that way.

        Raises:
            MemberNotFoundError, GenerationError, RebalanceInProgressError, MemberFencedError, StaleMemberEpochError:
                the committer is not a member of the present generation; nothing was committed.
            NoQuorumError, TooManyRequestsError, DrainingError: not possible now; nothing was committed.
            FateUnknownError: the offsets may be committed.
        """
        group_rules.check_group_id(group_id)
        async with self._calls.judged(group_id):
            return await self._commit(
                group_id,
                offsets,
                member_id=member_id,
                generation=generation,
                instance_id=instance_id,
            )

    async def _commit(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str,
        generation: int,
        instance_id: str | None,
    ) -> Mapping[TopicPartition, MilenaError]:
        """Commit as ``commit`` does, on the coordinator."""
        version = self._node.metadata.image.coordinators_version
        # A client that only commits may send an id: librdkafka makes one before it joins.
        is_member = generation >= 0 or self._has_members(group_id)
        if is_member:
            self._check_committer(group_id, member_id, generation, instance_id)
        image = self._node.metadata.image
        if not all(_has_partition(image, row) for row in offsets):
            # The client has seen the partition at another node, so this node's image may be behind.
            image = await self._node.metadata.barrier(timeout_ms=BARRIER_MS)
        taken, refused = _judged(image, offsets)
        if is_member:
            _refuse_not_held(image.groups.get(group_id), member_id, taken, refused)
        if refused:
            await self._calls.confirm(group_id, version)
            if is_member:
                # The group may have rebalanced during the wait.
                self._check_committer(group_id, member_id, generation, instance_id)
        kept = tuple(row for row in taken.values() if row.offset >= 0)
        if kept:
            await self._commits.commit(
                GroupCommit(
                    group_id=group_id,
                    member_id=member_id if is_member else None,
                    member_epoch=generation,
                    offsets=kept,
                    coordinators_version=version,
                )
            )
        forgotten = [(row.topic_id, row.partition) for row in taken.values() if row.offset < 0]
        if forgotten and group_id in self._node.metadata.image.groups:
            await self._delete_offsets(group_id, forgotten, version)
        return refused

    def _has_members(self, group_id: str) -> bool:
        group = self._node.metadata.image.groups.get(group_id)
        known = self._coordinator.classic.known(group_id)
        return (group is not None and group.member_count > 0) or (
            known is not None and known.member_count > 0
        )

    async def staged(
        self,
        group_id: str,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str = "",
        generation: int = NO_GENERATION,
        instance_id: str | None = None,
    ) -> tuple[GroupCommit | None, Mapping[TopicPartition, MilenaError]]:
        """Check offsets that a transaction will commit; return them, and the reasons for those that are refused alone.

        The image checks the member again when they are staged. Clients before KIP-447 name no member.

        Raises:
            MilenaError: as ``commit``, before anything is committed.
        """
        group_rules.check_group_id(group_id)
        is_member = generation >= 0 or bool(member_id)
        async with self._calls.judged(group_id):
            if is_member:
                self._check_committer(group_id, member_id, generation, instance_id)
        image = await self._node.metadata.barrier(timeout_ms=BARRIER_MS)
        taken, refused = _judged(image, offsets)
        if member_id:
            _refuse_not_held(image.groups.get(group_id), member_id, taken, refused)
        if not taken:
            return None, refused
        commit = GroupCommit(
            group_id=group_id,
            member_id=member_id if is_member else None,
            member_epoch=generation,
            offsets=tuple(taken.values()),
        )
        return commit, refused

    def _check_committer(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None
    ) -> None:
        if generation < 0 and not member_id:
            raise unknown_member(group_id, member_id)
        group = self._node.metadata.image.groups.get(group_id)
        if group is not None and group.members:
            return  # the commit itself checks members of server groups
        self._present(group_id, member_id).check_commit(member_id, generation, instance_id)

    async def fetch_offsets(
        self, group_id: str, partitions: Container[TopicPartition] | None = None
    ) -> Sequence[PartitionCommit]:
        """Return the group's committed offsets, in order; ``partitions`` None: all. A group may not exist."""
        self._calls.check(group_id)
        image = await self._node.metadata.barrier(timeout_ms=BARRIER_MS)
        return offsets_of(image, group_id, partitions)

    async def delete_offsets(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition],
        *,
        note: Callable[[str, Sequence[int]], Awaitable[None]],
    ) -> Mapping[TopicPartition, MilenaError]:
        """Delete single offsets (KIP-496); return the reasons for those that were refused alone.

        ``note``: called before offsets are deleted, for each of their topics, with its name and partitions.

        Raises:
            GroupNotFoundError: there is no such group.
            NoQuorumError, FateUnknownError: nothing was deleted; the offsets may be deleted.
        """
        self._calls.check(group_id)
        version = self._node.metadata.image.coordinators_version
        image = await self._node.metadata.barrier(timeout_ms=BARRIER_MS)
        if group_id not in image.groups:
            raise GroupNotFoundError(f"there is no group {group_id!r}")
        keys: list[tuple[str, int]] = []
        refused: dict[TopicPartition, MilenaError] = {}
        for topic, number in dict.fromkeys(partitions):
            known = image.topic(topic)
            if known is None:
                refused[topic, number] = TopicNotFoundError(f"there is no topic {topic!r}")
            elif self._subscribes(group_id, image.groups.get(group_id), topic):
                refused[topic, number] = GroupSubscribedError(
                    f"members of group {group_id!r} subscribe to topic {topic!r}: stop them first"
                )
            else:
                keys.append((known.topic_id, number))
        deleted: dict[str, list[int]] = {}
        for row in offsets_of(image, group_id, frozenset(partitions) - refused.keys()):
            deleted.setdefault(row.topic, []).append(row.partition)
        for topic, numbers in deleted.items():
            await note(topic, numbers)
        if keys:
            await self._delete_offsets(group_id, keys, version)
        return refused

    def _subscribes(self, group_id: str, group: Group | None, topic: str) -> bool:
        """Return whether a member may subscribe to the topic. Unknown subscriptions count as such."""
        if group is not None and group.members:
            return any(m.pattern is not None or topic in m.topics for m in group.members)
        known = self._coordinator.classic.known(group_id)
        if known is None:
            return group is not None and group.member_count > 0
        return any(_may_read(protocols, topic) for protocols in known.protocols())

    async def _delete_offsets(
        self, group_id: str, keys: Sequence[tuple[str, int]], version: int
    ) -> None:
        command = DeleteOffsets(
            broker_id=self._node.metadata.node_id,
            broker_epoch=self._node.membership.broker_epoch,
            group_id=group_id,
            partitions=tuple(keys),
            coordinators_version=version,
        )
        try:
            await self._node.metadata.propose(command, timeout_ms=PROPOSE_MS)
        except FencedError as error:
            raise NotCoordinatorError(f"{error.message} Nothing was deleted.") from error

    # -- groups ----------------------------------------------------------------------------------

    async def describe(self, group_id: str) -> ClassicDescription:
        """Return the group. A group that does not exist, or a server group, is Dead, as in Kafka.

        The caller has made sure that this node's image is current.
        """
        self._calls.check(group_id)
        known = self._coordinator.classic.known(group_id)
        if known is not None and not known.is_idle:
            return known.describe()
        group = self._node.metadata.image.groups.get(group_id)
        if group is None or is_server_group(group):
            return ClassicDescription(group_id=group_id, state=ClassicState.DEAD)
        if group.classic is not None:
            return self._coordinator.classic_group(group_id).describe()
        return ClassicDescription(group_id=group_id, state=ClassicState.EMPTY)

    async def groups(self, *, is_everywhere: bool = False) -> Sequence[ClassicOverview]:
        """Return the groups of both kinds that this node coordinates.

        ``is_everywhere``: also those of other coordinators, as far as they are stored.

        Raises:
            NoQuorumError: another node may coordinate some of them by now, and no majority could be asked.
        """
        # Two nodes with different images might each take the other for the coordinator of a group, and list it nowhere.
        image = await self._node.metadata.current_image()
        here = self._coordinator.classic
        ids = {*image.groups, *here.ids()}
        found = []
        for place, group_id in enumerate(sorted(ids)):
            if place % GROUPS_PER_TURN == 0:
                await one_turn()
            if is_everywhere or self._calls.coordinates(group_id, image):
                found.append(self._overview(group_id, image.groups.get(group_id)))
        return found

    def _overview(self, group_id: str, group: Group | None) -> ClassicOverview:
        known = self._coordinator.classic.known(group_id)
        if known is not None and known.member_count:
            described = known.describe()
            return ClassicOverview(
                group_id=group_id,
                protocol_type=described.protocol_type,
                state=described.state,
                is_classic=True,
            )
        if group is not None and is_server_group(group):
            return ClassicOverview(
                group_id=group_id,
                protocol_type=consumer_protocol.PROTOCOL_TYPE,
                state=server_state(group),
                is_classic=False,
            )
        classic = None if group is None else group.classic
        return ClassicOverview(
            group_id=group_id,
            protocol_type="" if classic is None else classic.protocol_type,
            state=ClassicState.STABLE if classic and classic.members else ClassicState.EMPTY,
            is_classic=True,
        )

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets.

        Raises:
            GroupNotFoundError, GroupNotEmptyError: refused.
            NoQuorumError, FateUnknownError: nothing was deleted; the group may be deleted.
        """
        group_rules.check_group_id(group_id)
        self._calls.check(group_id)
        await self._coordinator.delete(group_id)


def _has_partition(image: Image, row: OffsetToCommit) -> bool:
    topic = image.topic(row.topic)
    return topic is not None and row.partition < topic.partition_count


def _judged(
    image: Image, offsets: Sequence[OffsetToCommit]
) -> tuple[dict[TopicPartition, OffsetCommit], dict[TopicPartition, MilenaError]]:
    """Return the offsets to commit, and the reasons for the others. Of two for one partition, the last one counts."""
    taken: dict[TopicPartition, OffsetCommit] = {}
    refused: dict[TopicPartition, MilenaError] = {}
    for row in offsets:
        topic, key = image.topic(row.topic), (row.topic, row.partition)
        topic_id = topic_id_of(row)
        if topic is None or not topic.topic_id.startswith(topic_id):
            which = f" whose id begins with {topic_id}" if topic_id else ""
            refused[key] = TopicNotFoundError(f"there is no topic {row.topic!r}{which}")
            continue
        if not 0 <= row.partition < topic.partition_count:
            refused[key] = PartitionNotFoundError(
                f"topic {row.topic!r} has no partition {row.partition}"
            )
            continue
        try:
            group_rules.check_metadata(row.metadata)
        except MilenaError as error:
            refused[key] = error
            continue
        taken[key] = OffsetCommit(
            topic_id=topic.topic_id,
            partition=row.partition,
            offset=row.offset,
            leader_epoch=row.leader_epoch,
            metadata=row.metadata,
        )
    return taken, refused


def _refuse_not_held(
    group: Group | None,
    member_id: str,
    taken: dict[TopicPartition, OffsetCommit],
    refused: dict[TopicPartition, MilenaError],
) -> None:
    """Refuse the partitions that a member of a server group does not hold, each by itself.

    The commit would be refused as a whole for them.
    """
    member = group_rules.member_of(group, member_id)
    if member is None:
        return
    held = frozenset(partition_sets.keys_of(member.held))
    for key, row in list(taken.items()):
        if (row.topic_id, row.partition) not in held:
            del taken[key]
            refused[key] = StaleMemberEpochError(
                f"{key[0]}-{key[1]} is not held by member {member_id!r}: only its holder commits"
            )


def _may_read(protocols: tuple[tuple[str, bytes], ...] | None, topic: str) -> bool:
    if protocols is None:
        return True
    for _, metadata in protocols:
        topics = consumer_protocol.subscribed_topics(metadata)
        if topics is None or topic in topics:
            return True
    return False
