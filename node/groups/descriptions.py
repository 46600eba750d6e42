"""Descriptions of groups for clients, from the image: partitions by topic names, states, offsets. Pure."""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import asdict

from http_api.ports.groups import (
    GroupDescription,
    GroupHead,
    GroupKind,
    GroupState,
    MemberDescription,
    PartitionCommit,
    PartitionsByTopic,
    TopicPartition,
)
from node.groups.classic import consumer_protocol
from node.groups.rebalance import effective, to_give_back, waited_for
from raft_meta.machine.groups.coordinators import Coordinators
from raft_meta.machine.image import Group, GroupMember, Image, PartitionSet
from raft_meta.machine.topics import partition_sets


class TopicNames:
    """Translates between the topic names of clients and the topic ids of the image, by the newest image."""

    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image

    def to_ids(self, partitions: PartitionsByTopic) -> PartitionSet:
        """Return partitions by topic id; leave out topics that do not exist, because no member can own them."""
        topic_ids = self._image().topic_ids
        return partition_sets.of(
            (topic_ids[name], number)
            for name, numbers in partitions
            if name in topic_ids
            for number in numbers
        )

    def to_names(self, partitions: PartitionSet) -> PartitionsByTopic:
        """Return partitions by topic name, in order of names; leave out deleted topics."""
        topics = self._image().topics
        return tuple(
            sorted(
                (topics[topic_id].name, numbers)
                for topic_id, numbers in partitions
                if topic_id in topics
            )
        )


def is_server_group(group: Group) -> bool:
    """Return whether the coordinator computes the group's assignment, or did so for its last member.

    A group that only commits has had no member. To Kafka's clients it is a classic group.
    """
    return group.classic is None and group.generation > 0


def server_state(group: Group) -> str:
    """Return the state of a server group, in the words of Kafka's consumer protocol."""
    return _state(group).value.capitalize()


def head_of(group: Group, coordinators: Coordinators) -> GroupHead:
    """Return the group without its members and offsets."""
    return GroupHead(
        group_id=group.group_id,
        state=_state(group),
        generation=group.generation,
        assignor=group.assignor if group.classic is None else group.classic.protocol,
        coordinator=coordinators.of(group.group_id),
        member_count=group.member_count,
        kind=GroupKind.SERVER if group.classic is None else GroupKind.CLASSIC,
    )


def describe(image: Image, group: Group, coordinators: Coordinators) -> GroupDescription:
    """Return the group with its members and offsets."""
    return GroupDescription(
        **asdict(head_of(group, coordinators)),
        members=[
            *(_member(image, member) for member in group.members),
            *_classic_members(image, group),
        ],
        offsets=offsets_of(image, group.group_id),
    )


def offsets_of(
    image: Image, group_id: str, wanted: Container[TopicPartition] | None = None
) -> Sequence[PartitionCommit]:
    """Return the group's committed offsets in order of topic and partition; ``wanted`` None: all of them."""
    return sorted(
        _offsets(image, group_id, wanted), key=lambda offset: (offset.topic, offset.partition)
    )


def _offsets(
    image: Image, group_id: str, wanted: Container[TopicPartition] | None
) -> Iterator[PartitionCommit]:
    committed = image.offsets.get(group_id)
    for (topic_id, partition), offset in () if committed is None else committed.items():
        name = image.topics[topic_id].name
        if wanted is None or (name, partition) in wanted:
            yield PartitionCommit(
                topic=name,
                partition=partition,
                offset=offset.offset,
                leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                commit_ms=offset.commit_ms,
            )


def _state(group: Group) -> GroupState:
    if not group.member_count:
        return GroupState.EMPTY
    is_stable = all(member.held == member.target for member in group.members)
    return GroupState.STABLE if is_stable else GroupState.RECONCILING


def _member(image: Image, member: GroupMember) -> MemberDescription:
    return MemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        is_rest=member.is_rest,
        topics=member.topics,
        pattern=member.pattern,
        member_epoch=member.member_epoch,
        assignment=_names(image, effective(member)),
        revoking=_names(image, to_give_back(member)),
        pending=_names(image, waited_for(member)),
    )


def _classic_members(image: Image, group: Group) -> Iterator[MemberDescription]:
    """Yield the members of a classic group. Only consumers name topics and partitions in a known form."""
    classic = group.classic
    if classic is None:
        return
    is_consumer = classic.protocol_type == consumer_protocol.PROTOCOL_TYPE
    for member in classic.members:
        said = consumer_protocol.assigned_partitions(member.assignment) if is_consumer else None
        assignment = [one for one in said or () if _exists(image, one)]
        yield MemberDescription(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.host,
            is_rest=False,
            # The image has no subscriptions of classic members.
            topics=sorted({topic for topic, _ in assignment}),
            pattern=None,
            member_epoch=group.generation,
            assignment=assignment,
            revoking=(),
            pending=(),
        )


def _exists(image: Image, partition: TopicPartition) -> bool:
    topic = image.topic(partition[0])
    return topic is not None and 0 <= partition[1] < topic.partition_count


def _names(image: Image, partitions: PartitionSet) -> Sequence[TopicPartition]:
    return sorted(
        (image.topics[topic_id].name, number)
        for topic_id, number in partition_sets.keys_of(partitions)
    )
