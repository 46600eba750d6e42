"""Partitions: every change of leadership and in-sync replicas, and the rules that each change must keep.

A member of ``isr`` or ``eligible`` is *marked* if its copy is known to be incomplete: it is suspect (its recovery cut
records) or damaged. All other rules follow from one: every member that is not marked holds every committed record.
Therefore:

- A member leaves isr only if a leader is there, which holds all those records, too. A partition without a leader keeps
  its members, except members whose copy is lost.
- If a suspect or damaged member registers while there is a leader, it leaves isr at once, in the command that
  registers it. The mark of a suspect is its log end at the registration. If it stayed in isr, its log would grow, and
  the mark would be wrong when the leader is lost. So marks exist only while there is no leader. No log grows then, so
  marks stay true.
- If a marked member registers again without a report, its mark stays. The records that the earlier recovery cut are
  still missing; the later recovery only found nothing else to cut. An election ends the marks: the elected member's
  log becomes the log of the partition, and the other marked members leave isr. A mark also ends when its broker leaves
  isr. To return to isr, the broker must catch up.
- A copy that is found damaged while its broker runs also leaves isr, but only if another live, unmarked member stays.
  Its log will be cut, although the leader knows its former end. So the leader epoch rises: in a new epoch, a leader
  knows nothing of its followers' logs.
- While isr is smaller than min.insync.replicas, no record is committed. So a member that leaves isr then still holds
  every committed record, and stays ``eligible`` (KIP-966). If a partition is created with so small an isr
  (``topics``), its other replicas are eligible, too. When the leader is lost, the eligible replicas return to isr.

This module chooses no leader: ``elections`` makes plans, and the functions here check and apply them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from milena.model.errors import (
    BrokerNotFoundError,
    DrainingError,
    FencedError,
    InvalidRequestError,
    MilenaError,
    NotEnoughReplicasError,
    NotLeaderError,
    PartitionNotFoundError,
    StaleBrokerEpochError,
    StaleControllerEpochError,
    StaleLeaderEpochError,
    StaleVersionError,
)
from raft_meta.machine.commands import (
    AlterIsr,
    ElectLeaders,
    GiveUpReplicas,
    IsrChange,
    LeaderChange,
    ReplicaReport,
)
from raft_meta.machine.copies import replace
from raft_meta.machine.image import Broker, Image, Partition, PartitionKey, Suspect
from raft_meta.machine.outcome import Outcome
from raft_meta.machine.topics import configs

PartitionCommand = ElectLeaders | AlterIsr | GiveUpReplicas
ChangeT = TypeVar("ChangeT", IsrChange, LeaderChange)


def apply(image: Image, command: PartitionCommand) -> Outcome:
    """Apply a partition command.

    Raises:
        StaleControllerEpochError, StaleBrokerEpochError, BrokerNotFoundError: the command is refused as a whole.
    """
    match command:
        case ElectLeaders():
            check_controller(image, command.controller_epoch)
            return apply_changes(image, command.changes)
        case AlterIsr():
            return _alter_isr(image, command)
        case GiveUpReplicas():
            return _give_up(image, command)


def check_controller(image: Image, controller_epoch: int) -> None:
    """Refuse a command of a former controller.

    Raises:
        StaleControllerEpochError: the epoch is not the current one.
    """
    if controller_epoch != image.controller_epoch:
        raise StaleControllerEpochError(
            f"Controller epoch {controller_epoch} is not the current one, {image.controller_epoch}."
        )


def ids(nodes: Iterable[int]) -> str:
    """Return the ids of nodes as messages show them, and as ``--to`` of the command line takes them."""
    return ",".join(str(node) for node in nodes)


def current_broker(image: Image, broker_id: int, broker_epoch: int) -> Broker:
    """Return the broker, if ``broker_epoch`` is the epoch of its latest registration.

    Raises:
        BrokerNotFoundError: the broker is not registered.
        StaleBrokerEpochError: the broker has registered again since.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerNotFoundError(f"Node {broker_id} is not registered.")
    if broker.broker_epoch != broker_epoch:
        raise StaleBrokerEpochError(
            f"Broker epoch {broker_epoch} of node {broker_id} is not the current one,"
            f" {broker.broker_epoch}."
        )
    return broker


def with_partitions(image: Image, changed: Mapping[PartitionKey, Partition]) -> Image:
    """Return the image with these partitions in the place of the present ones."""
    if not changed:
        return image
    return replace(image, partitions=image.partitions.update(changed))


def marked(partition: Partition) -> frozenset[int]:
    """Return the brokers that are marked suspect or damaged."""
    return frozenset(suspect.broker_id for suspect in partition.suspects).union(partition.damaged)


def in_order(partition: Partition, members: Collection[int]) -> tuple[int, ...]:
    """Return these members in the order of replicas."""
    return tuple(replica for replica in partition.replicas if replica in members)


def without_leader(partition: Partition) -> Partition:
    """Return the partition without a leader. Its isr keeps all members, and the eligible replicas return to isr."""
    return replace(
        partition,
        isr=in_order(partition, {*partition.isr, *partition.eligible}),
        eligible=(),
        leader=None,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
    )


def with_leader(
    partition: Partition, *, leader: int, isr: Collection[int], min_insync: int
) -> Partition:
    """Return the partition under this leader and isr, without marks.

    If isr is smaller than ``min_insync``, unmarked members that left it become eligible.
    """
    is_small = len(isr) < min_insync
    departed = {*partition.isr, *partition.eligible}.difference(isr, marked(partition))
    return replace(
        partition,
        isr=in_order(partition, isr),
        leader=leader,
        leader_epoch=partition.leader_epoch + (leader != partition.leader),
        partition_epoch=partition.partition_epoch + 1,
        suspects=(),
        damaged=(),
        eligible=in_order(partition, departed) if is_small else (),
    )


def with_min_insync(partition: Partition, min_insync: int) -> Partition:
    """Return the partition after a change of min.insync.replicas.

    If isr is large enough now, it may commit records without the eligible replicas, so none stays eligible.
    """
    if not partition.eligible or len(partition.isr) < min_insync:
        return partition
    return replace(partition, eligible=(), partition_epoch=partition.partition_epoch + 1)


def apply_changes(image: Image, changes: Iterable[LeaderChange]) -> Outcome:
    """Apply the controller's changes that are still valid; response: for each change, whether it was applied."""
    changed: dict[PartitionKey, Partition] = {}
    taken: list[bool] = []
    for change in changes:
        key = (change.topic_id, change.partition)
        partition = changed.get(key) or image.partitions.get(key)
        after = None if partition is None else _changed(image, partition, change)
        taken.append(after is not None)
        if after is not None:
            changed[key] = after
    return Outcome(with_partitions(image, changed), tuple(taken))


def _changed(image: Image, partition: Partition, change: LeaderChange) -> Partition | None:
    """Return the partition after the change; None if the change is no longer valid or changes nothing."""
    if partition.partition_epoch != change.partition_epoch:
        return None
    isr = frozenset(change.isr)
    if change.leader is None:
        is_lost = partition.leader is not None and isr == frozenset(partition.isr)
        return without_leader(partition) if is_lost else None
    broker = image.brokers.get(change.leader)
    if (
        broker is None
        or broker.is_fenced
        or len(isr) != len(change.isr)
        or change.leader not in isr
    ):
        return None
    if change.is_unclean:
        return _unclean(image, partition, change)
    is_same = change.leader == partition.leader and isr == frozenset(partition.isr)
    if is_same or not _is_clean(partition, change.leader, isr):
        return None
    min_insync = configs.min_insync(image.topics[change.topic_id])
    return with_leader(partition, leader=change.leader, isr=isr, min_insync=min_insync)


def _is_clean(partition: Partition, leader: int, isr: frozenset[int]) -> bool:
    """Return whether the new isr may follow without loss of committed records.

    Every member except the leader must be unmarked. A suspect may lead only if all members are marked.
    """
    members = frozenset(partition.isr).union(partition.eligible)
    doubtful = marked(partition)
    if not isr <= members or not doubtful.isdisjoint(isr - {leader}):
        return False
    # The suspect with the longest log may lead only if every member is marked. A damaged copy never leads.
    return leader not in doubtful or (doubtful == members and leader not in partition.damaged)


def _unclean(image: Image, partition: Partition, change: LeaderChange) -> Partition | None:
    """Return the partition after an unclean election.

    None if the topic does not allow it, if an unmarked member of isr or eligible is live, or if the leader cannot lead.
    """
    leader = change.leader
    sound = {*partition.isr, *partition.eligible} - marked(partition)
    is_needed = not any(is_live(image, member) for member in sound)
    is_allowed = configs.allows_unclean(image.topics[change.topic_id])
    is_settled = leader in partition.settled or leader in partition.isr
    is_possible = is_settled and leader not in partition.damaged
    if leader is None or not (is_needed and is_allowed and is_possible) or change.isr != (leader,):
        return None
    return replace(
        partition,
        isr=(leader,),
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
        suspects=(),
        damaged=(),
        eligible=(),
        unclean_epoch=partition.leader_epoch + 1,
    )


def is_live(image: Image, broker_id: int) -> bool:
    """Return whether the broker is registered and not fenced."""
    broker = image.brokers.get(broker_id)
    return broker is not None and not broker.is_fenced


def lose_leader(image: Image, broker_id: int) -> dict[PartitionKey, Partition]:
    """Return the partitions that the broker leads, changed so that they have no leader."""
    return {
        key: without_leader(partition)
        for key, partition in image.partitions.items()
        if partition.leader == broker_id
    }


def rejoined(
    image: Image, broker_id: int, *, is_same_directory: bool, reports: Iterable[ReplicaReport]
) -> dict[PartitionKey, Partition]:
    """Return the partitions that a broker's registration changes. The broker leads none of them any more.

    ``reports``: the copies that its recovery found suspect or damaged. The module's docstring has the rules.
    ``is_same_directory``: False if the broker's data directory is another one, so all its copies are lost.
    """
    by_key = {(report.topic_id, report.partition): report for report in reports}
    changed: dict[PartitionKey, Partition] = {}
    for key, before in image.partitions.items():
        if broker_id not in before.isr and broker_id not in before.eligible:
            continue
        after = without_leader(before) if before.leader == broker_id else before
        report = by_key.get(key)
        if not is_same_directory or (report is not None and report.is_damaged):
            after = _without_copy(image, key, after, broker_id)
        elif report is not None:
            after = _with_suspect(image, key, after, report, broker_id)
        if after is not before:
            # One command raises the epoch by one, even if several rules changed the partition.
            changed[key] = replace(after, partition_epoch=before.partition_epoch + 1)
    return changed


def _without_copy(image: Image, key: PartitionKey, before: Partition, broker_id: int) -> Partition:
    if before.leader is not None:
        return _expelled(image, key, before, broker_id)
    others = tuple(member for member in before.isr if member != broker_id)
    suspects = tuple(suspect for suspect in before.suspects if suspect.broker_id != broker_id)
    if others:
        return replace(before, isr=others, suspects=suspects)
    if before.damaged:
        return before
    return replace(before, suspects=suspects, damaged=(broker_id,))


def _with_suspect(
    image: Image, key: PartitionKey, before: Partition, report: ReplicaReport, broker_id: int
) -> Partition:
    if before.leader is not None:
        return _expelled(image, key, before, broker_id)
    if broker_id in before.damaged:
        return before
    mark = Suspect(
        broker_id=broker_id, last_epoch=report.last_epoch, log_end_offset=report.log_end_offset
    )
    others = [suspect for suspect in before.suspects if suspect.broker_id != broker_id]
    suspects = tuple(sorted([*others, mark], key=lambda suspect: suspect.broker_id))
    return before if suspects == before.suspects else replace(before, suspects=suspects)


def _expelled(image: Image, key: PartitionKey, before: Partition, broker_id: int) -> Partition:
    """Remove a member with a suspect or damaged copy while another member leads. It does not become eligible."""
    if before.leader is None:
        return before
    after = with_leader(
        before,
        leader=before.leader,
        isr=tuple(member for member in before.isr if member != broker_id),
        min_insync=configs.min_insync(image.topics[key[0]]),
    )
    return replace(
        after, eligible=tuple(member for member in after.eligible if member != broker_id)
    )


def _each_alone(
    image: Image,
    changes: Iterable[ChangeT],
    changed_by: Callable[[Partition | None, ChangeT], Partition],
) -> Outcome:
    """Apply each change on top of those before it; skip refused ones. Response: for each, "" or the error's code."""
    changed: dict[PartitionKey, Partition] = {}
    codes: list[str] = []
    for change in changes:
        key = (change.topic_id, change.partition)
        try:
            changed[key] = changed_by(changed.get(key) or image.partitions.get(key), change)
        except MilenaError as error:
            codes.append(error.code)
        else:
            codes.append("")
    return Outcome(with_partitions(image, changed), tuple(codes))


def _alter_isr(image: Image, command: AlterIsr) -> Outcome:
    current_broker(image, command.broker_id, command.broker_epoch)
    return _each_alone(
        image,
        command.changes,
        lambda partition, change: _with_isr(image, partition, command.broker_id, change),
    )


def _with_isr(
    image: Image, partition: Partition | None, leader: int, change: IsrChange
) -> Partition:
    if partition is None:
        raise PartitionNotFoundError("The topic or partition is gone.")
    if partition.leader != leader:
        raise NotLeaderError("The sender does not lead the partition.", leader=partition.leader)
    if partition.leader_epoch != change.leader_epoch:
        raise StaleLeaderEpochError("The leader epoch has moved on.")
    if partition.partition_epoch != change.partition_epoch:
        raise StaleVersionError("The partition epoch has moved on.")
    members = frozenset(member.broker_id for member in change.isr)
    if len(members) != len(change.isr) or leader not in members:
        raise InvalidRequestError("An isr names each member once, its leader included.")
    if not members.issubset(partition.replicas):
        raise InvalidRequestError("An isr is a subset of the replicas.")
    for member in change.isr:
        broker = current_broker(image, member.broker_id, member.broker_epoch)
        if broker.is_fenced:
            raise FencedError("A fenced node cannot be in sync.")
        if broker.is_draining and broker.broker_id != leader:
            raise DrainingError("A draining node cannot be in sync.")
    min_insync = configs.min_insync(image.topics[change.topic_id])
    return with_leader(partition, leader=leader, isr=members, min_insync=min_insync)


def _give_up(image: Image, command: GiveUpReplicas) -> Outcome:
    current_broker(image, command.broker_id, command.broker_epoch)
    return _each_alone(
        image,
        command.changes,
        lambda partition, change: _given_up(image, partition, command.broker_id, change),
    )


def _given_up(
    image: Image, before: Partition | None, broker_id: int, change: LeaderChange
) -> Partition:
    if before is None or broker_id not in before.replicas:
        raise PartitionNotFoundError("The topic or partition is gone, or the node's replica.")
    if before.partition_epoch != change.partition_epoch:
        raise StaleVersionError("The partition epoch has moved on.")
    if change.is_unclean or change.leader is None or broker_id in change.isr:
        raise InvalidRequestError("A copy is given up in favour of a leader that is in sync.")
    is_same = before.leader == change.leader and before.isr == change.isr
    after = before if is_same else None
    if before.leader is not None and not is_same:
        after = _changed(image, before, change)
    if after is None:
        raise NotEnoughReplicasError("No other live replica holds every record.")
    return replace(
        after,
        leader_epoch=before.leader_epoch + 1,
        partition_epoch=before.partition_epoch + 1,
        eligible=tuple(member for member in after.eligible if member != broker_id),
    )
