"""Reassignments: moves of a partition between brokers, without losing a record and without downtime.

Source: KIP-455. The states of a move:

1. **waiting**: the image has the target, a list of replicas, but the partition's replicas are unchanged;
2. **started**: the new replicas of the target are added. Each is empty at first, fetches from the leader, and joins
   isr once it has caught up, by the rules of every replica (``partitions``);
3. **finished**: every replica of the target is in isr, so each holds every committed record, and all other replicas
   leave. Or **cancelled**: the former replicas stay, and the added ones leave.

Every step keeps these rules:

- After replicas leave isr (or eligible), at least min.insync.replicas in-sync replicas stay, and one of them is the
  leader. A partition without a leader keeps its members (see ``partitions``).
- Only a live member of isr that stays becomes leader.
- When replicas leave, the leader epoch rises. A removed replica may be added again, empty, before the leader notices.
  Because of the new epoch, the leader does not count what that replica acknowledged before. KRaft's
  ``PartitionChangeBuilder`` does the same.

There is no rule here for a broker that dies, is fenced or loses its directory: its replica leaves isr, and the finish
waits for it. Deleting the topic ends its reassignments.

The second half of this module plans steps, for the controller and for cancellations. A plan is computed from one image.
The command that applies the plan compares epochs. So if the partition has changed since, the command does nothing.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from milena.model.errors import (
    ConflictError,
    InvalidReplicationError,
    InvalidRequestError,
    MilenaError,
    NotEnoughReplicasError,
    NotReadyError,
    PartitionNotFoundError,
    StaleVersionError,
)
from raft_meta.machine.commands import (
    LeaderChange,
    ReassignmentStep,
    ReassignPartitions,
    StepReassignments,
    TargetReplicas,
)
from raft_meta.machine.copies import replace
from raft_meta.machine.image import Image, Partition, PartitionKey, Reassignment, Topic
from raft_meta.machine.outcome import Outcome
from raft_meta.machine.topics import configs, partitions

ReassignmentCommand = ReassignPartitions | StepReassignments

START, FINISH, CANCEL = "start", "finish", "cancel"


def apply(image: Image, command: ReassignmentCommand) -> Outcome:
    """Apply the valid parts of the command; response: for each part, "" or the error's code."""
    parts: Sequence[TargetReplicas | ReassignmentStep]
    parts = command.targets if isinstance(command, ReassignPartitions) else command.steps
    changed: dict[PartitionKey, Partition] = {}
    codes: list[str] = []
    for part in parts:
        key = (part.topic_id, part.partition)
        before = changed.get(key) or image.partitions.get(key)
        try:
            after = _changed(image, before, part)
        except MilenaError as error:
            codes.append(error.code)
        else:
            codes.append("")
            if after is not before:
                changed[key] = after
    moved = partitions.with_partitions(image, changed)
    grown = _with_factors(moved, {topic_id for topic_id, _ in changed})
    return Outcome(grown, tuple(codes))


def _changed(
    image: Image, before: Partition | None, part: TargetReplicas | ReassignmentStep
) -> Partition:
    if before is None:
        raise PartitionNotFoundError("The topic or partition is gone.")
    if isinstance(part, TargetReplicas):
        return _with_target(image, before, part)
    return _with_step(image, before, part)


# -- a target --------------------------------------------------------------------------------------


def check_target(image: Image, topic: Topic, partition: int, replicas: Sequence[int]) -> None:
    """Refuse a target that is invalid for every partition of the topic.

    Raises:
        InvalidReplicationError: there are no brokers, repeated or unknown ones, or fewer than min.insync.replicas.
    """
    where = f"Partition {partition} of topic '{topic.name}'"
    if not replicas or len(set(replicas)) != len(replicas):
        raise InvalidReplicationError(
            f"{where} needs replicas on one or more distinct nodes, not '{partitions.ids(replicas)}'."
        )
    unknown = [replica for replica in replicas if replica not in image.brokers]
    if unknown:
        raise InvalidReplicationError(
            f"{where} cannot move to nodes that are not registered: {partitions.ids(unknown)}; registered are"
            f" {partitions.ids(sorted(image.brokers))}."
        )
    needed = configs.min_insync(topic)
    if len(replicas) < needed:
        raise InvalidReplicationError(
            f"{where} needs at least {needed} replicas, its min.insync.replicas, not {len(replicas)}; lower"
            " that first."
        )


def _with_target(image: Image, before: Partition, target: TargetReplicas) -> Partition:
    check_target(image, image.topics[target.topic_id], target.partition, target.replicas)
    if min(target.max_concurrent, target.throttle_bytes_per_s) < 0:
        raise InvalidRequestError("Bounds of a reassignment are not negative.")
    moving = before.moving
    if moving is None and frozenset(target.replicas) == frozenset(before.replicas):
        if target.replicas == before.replicas:
            return before
        return _with_replicas(image, target.topic_id, before, target.replicas, before.leader)
    wanted = Reassignment(
        target=target.replicas,
        former=before.settled,
        is_started=moving is not None and moving.is_started,
        max_concurrent=target.max_concurrent,
        throttle_bytes_per_s=target.throttle_bytes_per_s,
    )
    if wanted == moving:
        return before
    changed = replace(before, moving=wanted)
    return _with_new_replicas(changed) if wanted.is_started else _next_epoch(changed)


def _next_epoch(partition: Partition) -> Partition:
    return replace(partition, partition_epoch=partition.partition_epoch + 1)


def _with_new_replicas(before: Partition) -> Partition:
    """Return the started partition with every replica of its target added.

    The target may have changed after the start. Replicas that were added for the earlier target stay until the finish,
    because some may be in sync and needed, and each departure of replicas raises the leader epoch.
    """
    assert before.moving is not None
    new = (replica for replica in before.moving.target if replica not in before.replicas)
    return _next_epoch(replace(before, replicas=(*before.replicas, *new)))


# -- steps -----------------------------------------------------------------------------------------


def _with_step(image: Image, before: Partition, step: ReassignmentStep) -> Partition:
    if before.partition_epoch != step.partition_epoch:
        raise StaleVersionError("The partition epoch has moved on.")
    moving = before.moving
    if moving is None:
        raise ConflictError("The partition is not being reassigned.")
    match step.kind:
        case "start":
            if moving.is_started:
                return before
            return _with_new_replicas(replace(before, moving=replace(moving, is_started=True)))
        case "finish":
            check_finish(image, step.topic_id, before)
            return _with_replicas(image, step.topic_id, before, moving.target, step.leader)
        case "cancel":
            check_cancel(image, step.topic_id, before)
            return _with_replicas(image, step.topic_id, before, moving.former, step.leader)
        case _:
            raise InvalidRequestError(f"A reassignment has no step '{step.kind}'.")


def check_finish(image: Image, topic_id: str, partition: Partition) -> None:
    """Refuse to finish a reassignment too early.

    Raises:
        NotReadyError: a replica of the target is not in sync, or there is no leader.
        NotEnoughReplicasError: the target has fewer replicas than min.insync.replicas, which was raised.
    """
    moving = partition.moving
    assert moving is not None, "no reassignment to finish"
    missing = [member for member in moving.target if member not in partition.isr]
    if missing or partition.leader is None or not moving.is_started:
        raise NotReadyError(f"Not in sync yet: {missing}; leader {partition.leader}.")
    needed = configs.min_insync(image.topics[topic_id])
    if len(moving.target) < needed:
        raise NotEnoughReplicasError(
            f"{len(moving.target)} replicas are fewer than min.insync.replicas, {needed}."
        )


def check_cancel(image: Image, topic_id: str, partition: Partition) -> None:
    """Refuse a cancellation after which too few in-sync replicas would stay.

    Raises:
        NotEnoughReplicasError: too few of the former replicas are in sync.
    """
    moving = partition.moving
    assert moving is not None, "no reassignment to cancel"
    holders = {*partition.isr, *partition.eligible}
    staying = [member for member in partition.isr if member in moving.former]
    if holders <= set(moving.former):
        return
    needed = configs.min_insync(image.topics[topic_id])
    if partition.leader is None or len(staying) < needed:
        raise NotEnoughReplicasError(
            f"Only {staying} of the former replicas {partitions.ids(moving.former)} are in sync and {needed} are needed"
            f" (leader: {partition.leader}): cancel when they are, or name other replicas."
        )


def _with_replicas(
    image: Image,
    topic_id: str,
    before: Partition,
    replicas: tuple[int, ...],
    leader: int | None,
) -> Partition:
    """Return the partition with these replicas and no reassignment. The caller has checked that others may leave."""
    isr = _of(replicas, before.isr)
    if leader is None and before.leader is not None:
        raise InvalidRequestError("A leader must be named where there is one.")
    if leader is not None and not (
        before.leader is not None and leader in isr and partitions.is_live(image, leader)
    ):
        raise NotReadyError(f"Node {leader} cannot lead: it is not live and in sync.")
    assert isr, f"no member of {before.isr} would stay"
    is_small = len(isr) < configs.min_insync(image.topics[topic_id])
    has_leavers = not set(before.replicas) <= set(replicas)
    return replace(
        before,
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=before.leader_epoch + (has_leavers or leader != before.leader),
        partition_epoch=before.partition_epoch + 1,
        damaged=_of(replicas, before.damaged),
        eligible=_of(replicas, before.eligible) if is_small else (),
        moving=None,
    )


def _of(replicas: tuple[int, ...], members: Collection[int]) -> tuple[int, ...]:
    return tuple(replica for replica in replicas if replica in members)


def _with_factors(image: Image, topic_ids: Iterable[str]) -> Image:
    """If all partitions of a topic have the same number of replicas, make it the topic's replication factor.

    Not while one of its partitions is being reassigned. If the topic's min.insync.replicas is a default, it follows
    the new factor.
    """
    for topic_id in sorted(topic_ids):
        topic = image.topics[topic_id]
        states = {
            (topic_id, n): image.partitions[topic_id, n] for n in range(topic.partition_count)
        }
        factors = {len(state.replicas) for state in states.values()}
        if factors == {topic.replication_factor} or len(factors) != 1:
            continue
        if any(state.moving is not None for state in states.values()):
            continue
        after = replace(topic, replication_factor=factors.pop())
        relieved = {
            key: partitions.with_min_insync(state, configs.min_insync(after))
            for key, state in states.items()
        }
        relieved = {key: state for key, state in relieved.items() if state is not states[key]}
        image = replace(
            partitions.with_partitions(image, relieved),
            topics=image.topics.set(topic_id, after),
        )
    return image


# -- plans -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The next steps of the controller for the reassignments of one image."""

    starts: tuple[ReassignmentStep, ...]
    handovers: tuple[LeaderChange, ...]
    """Changes of leader for moves whose targets are all in sync, but whose leader will leave. A target leads before the
    finish. So writes that wait at the old leader can still be answered: they learn that their records are committed."""
    finishes: tuple[ReassignmentStep, ...]
    """Finishes of moves whose leader is a replica of the target."""


def running(image: Image) -> list[tuple[PartitionKey, Partition]]:
    """Return the partitions with a reassignment, waiting or started, in order of keys."""
    found = [item for item in image.partitions.items() if item[1].moving is not None]
    return sorted(found, key=itemgetter(0))


def plan_steps(image: Image) -> StepPlan:
    """Return the steps that are possible now."""
    starts: list[ReassignmentStep] = []
    handovers: list[LeaderChange] = []
    finishes: list[ReassignmentStep] = []
    under_way = running(image)
    started = sum(state.moving is not None and state.moving.is_started for _, state in under_way)
    for key, state in under_way:
        moving = state.moving
        assert moving is not None, "running() gives partitions with a reassignment"
        if not moving.is_started:
            if moving.max_concurrent == 0 or started < moving.max_concurrent:
                starts.append(_step(key, state, START, state.leader))
                started += 1
        elif _may_finish(image, key, state):
            if state.leader in moving.target:
                finishes.append(_step(key, state, FINISH, state.leader))
            else:
                leader = next_leader(image, state, moving.target)
                if leader is not None:
                    handovers.append(_handover(key, state, leader))
    return StepPlan(tuple(starts), tuple(handovers), tuple(finishes))


def _may_finish(image: Image, key: PartitionKey, state: Partition) -> bool:
    try:
        check_finish(image, key[0], state)
    except MilenaError:
        return False
    return True


def plan_cancel(image: Image, key: PartitionKey) -> ReassignmentStep:
    """Return the step that cancels a partition's reassignment.

    Raises:
        NotEnoughReplicasError: too few of the former replicas are in sync.
    """
    state = image.partitions[key]
    assert state.moving is not None, f"{key} is not being reassigned"
    check_cancel(image, key[0], state)
    leader = state.leader
    if leader is not None and leader not in state.moving.former:
        leader = next_leader(image, state, state.moving.former)
        if leader is None:
            raise NotEnoughReplicasError(
                f"None of the former replicas {partitions.ids(state.moving.former)} can lead now."
            )
    return _step(key, state, CANCEL, leader)


def next_leader(image: Image, state: Partition, members: tuple[int, ...]) -> int | None:
    """Return the first of these members that is in sync and live, draining brokers last; None if there is none."""
    able = [m for m in members if m in state.isr and partitions.is_live(image, m)]
    staying = [m for m in able if not image.brokers[m].is_draining]
    return next(iter(staying or able), None)


def _step(key: PartitionKey, state: Partition, kind: str, leader: int | None) -> ReassignmentStep:
    return ReassignmentStep(
        topic_id=key[0],
        partition=key[1],
        partition_epoch=state.partition_epoch,
        kind=kind,
        leader=leader,
    )


def _handover(key: PartitionKey, state: Partition, leader: int) -> LeaderChange:
    return LeaderChange(
        topic_id=key[0],
        partition=key[1],
        partition_epoch=state.partition_epoch,
        leader=leader,
        isr=state.isr,
    )
