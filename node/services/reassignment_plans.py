"""Plans a client's request to move replicas, against one image, and describes running moves to clients. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from http_api.ports.node import (
    AddedReplica,
    MoveState,
    PlannedReassignment,
    ReassignmentRequest,
    ReplicaTarget,
    RunningReassignment,
)
from milena.model.errors import (
    InvalidReplicationError,
    MilenaError,
    PartitionNotFoundError,
    StaleVersionError,
    TooManyReplicasError,
    TopicNotFoundError,
)
from node.services.messages import ReplicaProgress
from raft_meta.machine import bounds
from raft_meta.machine.commands import ReassignmentStep, TargetReplicas
from raft_meta.machine.image import Image, Partition, PartitionKey
from raft_meta.machine.topics import reassignments
from raft_meta.machine.topics.rebalancing import plan_drain, plan_rebalance


def plan(image: Image, request: ReassignmentRequest) -> list[PlannedReassignment]:
    """Return the partitions that the request moves, or whose move it cancels. All are checked. May take seconds.

    Raises:
        TopicNotFoundError, PartitionNotFoundError, BrokerNotFoundError: the request names something that does not
            exist.
        InvalidReplicationError: the replicas of a partition are not possible, or a partition is named twice.
        TooManyReplicasError: a broker would have too many replicas.
    """
    if request.partitions:
        planned = _explicit(image, request.partitions, is_each_alone=request.is_each_alone)
    else:
        drain = request.drain
        moves = plan_rebalance(image) if drain is None else plan_drain(image, drain)
        planned = [
            PlannedReassignment(
                topic=image.topics[move.topic_id].name,
                topic_id=move.topic_id,
                partition=move.partition,
                before=move.before,
                after=move.after,
            )
            for move in moves
        ]
    _check_bounds(image, planned)
    return planned


def target_of(row: PlannedReassignment, request: ReassignmentRequest) -> TargetReplicas:
    """Return the partition's target for the command ``ReassignPartitions``."""
    return TargetReplicas(
        topic_id=row.topic_id,
        partition=row.partition,
        replicas=row.after,
        max_concurrent=request.max_concurrent,
        throttle_bytes_per_s=request.throttle_bytes_per_s,
    )


def running_keys(image: Image, topic: str | None, partition: int | None) -> list[PartitionKey]:
    """Return the partitions that are being moved: all (``topic`` None), those of a topic, or one partition.

    Raises:
        TopicNotFoundError, PartitionNotFoundError: the topic or partition does not exist.
    """
    keys = [key for key, _ in reassignments.running(image)]
    if topic is None:
        return keys
    topic_id = _topic_id(image, topic)
    if partition is not None:
        _partition(image, topic, partition)
    return [key for key in keys if key[0] == topic_id and partition in {None, key[1]}]


def _topic_id(image: Image, name: str) -> str:
    topic_id = image.topic_ids.get(name)
    if topic_id is None:
        raise TopicNotFoundError(f"topic {name!r} does not exist")
    return topic_id


def _partition(image: Image, name: str, partition: int) -> Partition:
    state = image.partition(_topic_id(image, name), partition)
    if state is None:
        raise PartitionNotFoundError(f"topic {name!r} has no partition {partition}")
    return state


def _explicit(
    image: Image, targets: Sequence[ReplicaTarget], *, is_each_alone: bool
) -> list[PlannedReassignment]:
    """Plan the moves that a client lists partition by partition. ``is_each_alone``: errors are in the rows.

    Raises:
        TopicNotFoundError, PartitionNotFoundError: the request names something that does not exist.
        InvalidReplicationError: the replicas of a partition are not possible, or a partition is named twice.
    """
    planned: list[PlannedReassignment] = []
    seen: set[tuple[str, int]] = set()
    for target in targets:
        row = PlannedReassignment(
            topic=target.topic,
            topic_id=image.topic_ids.get(target.topic, ""),
            partition=target.partition,
            before=(),
            after=() if target.replicas is None else target.replicas,
            is_cancelled=target.replicas is None,
        )
        try:
            planned.append(_checked(image, row, seen))
        except MilenaError as error:
            if not is_each_alone:
                raise
            planned.append(row.refused(error))
    return planned


def _checked(
    image: Image, row: PlannedReassignment, seen: set[tuple[str, int]]
) -> PlannedReassignment:
    """Return the row of a named partition with its present replicas. ``seen``: the partitions before it.

    Raises:
        TopicNotFoundError, PartitionNotFoundError, InvalidReplicationError: it cannot move.
    """
    settled = _partition(image, row.topic, row.partition).settled
    if row.key in seen:
        raise InvalidReplicationError(f"partition {row.partition} of {row.topic} comes twice")
    seen.add(row.key)
    if row.is_cancelled:
        return replace(row, before=settled, after=settled)
    reassignments.check_target(image, image.topics[row.topic_id], row.partition, row.after)
    return replace(row, before=settled)


def _check_bounds(image: Image, planned: Iterable[PlannedReassignment]) -> None:
    """Refuse moves after which a broker would have more replicas than a node can carry.

    Raises:
        TooManyReplicasError: the message names the broker.
    """
    added = Counter(
        b for row in planned if row.error is None for b in row.after if b not in row.before
    )
    held = Counter(b for state in image.partitions.values() for b in state.replicas if b in added)
    for broker_id in sorted(added):
        total = held[broker_id] + added[broker_id]
        if total > bounds.REPLICAS_PER_BROKER_MAX:
            raise TooManyReplicasError(
                f"Node {broker_id} would hold {total} replicas, more than the {bounds.REPLICAS_PER_BROKER_MAX}"
                " that one node carries; name other nodes, or add some."
            )


def cancel_steps(
    image: Image, keys: Iterable[PartitionKey]
) -> tuple[list[tuple[PlannedReassignment, ReassignmentStep]], list[PlannedReassignment]]:
    """Return the steps that cancel these moves, and the moves that have ended or cannot be cancelled."""
    steps: list[tuple[PlannedReassignment, ReassignmentStep]] = []
    refused: list[PlannedReassignment] = []
    for key in keys:
        state = image.partitions.get(key)
        if state is None:
            continue
        moving = state.moving
        row = PlannedReassignment(
            topic=image.topics[key[0]].name,
            topic_id=key[0],
            partition=key[1],
            before=state.replicas if moving is None else moving.target,
            after=state.settled,
            is_cancelled=True,
        )
        if moving is None:
            refused.append(row.refused(StaleVersionError("It is not being moved (any more).")))
            continue
        try:
            steps.append((row, reassignments.plan_cancel(image, key)))
        except MilenaError as error:
            refused.append(row.refused(error))
    return steps, refused


def running_move(
    image: Image,
    key: PartitionKey,
    state: Partition,
    known: Mapping[tuple[str, int, int], ReplicaProgress],
) -> RunningReassignment:
    """Describe a partition that is being moved. ``known``: leaders' reports, by (topic id, partition, broker id)."""
    moving = state.moving
    assert moving is not None, "running() gives partitions with a reassignment"
    added = [_added(key, state, b, known) for b in moving.target if b not in moving.former]
    if not moving.is_started:
        step = MoveState.WAITING
    elif set(moving.target) <= set(state.isr):
        step = MoveState.FINISHING
    else:
        step = MoveState.CATCHING_UP
    return RunningReassignment(
        topic=image.topics[key[0]].name,
        partition=key[1],
        state=step,
        former=moving.former,
        target=moving.target,
        isr=state.isr,
        leader=state.leader,
        added=tuple(added),
        throttle_bytes_per_s=moving.throttle_bytes_per_s,
        max_concurrent=moving.max_concurrent,
    )


def _added(
    key: PartitionKey,
    state: Partition,
    broker_id: int,
    known: Mapping[tuple[str, int, int], ReplicaProgress],
) -> AddedReplica:
    if broker_id in state.isr:
        return AddedReplica(broker_id=broker_id, is_in_sync=True, offsets_left=0, bytes_left=0)
    row = known.get((*key, broker_id))
    return AddedReplica(
        broker_id=broker_id,
        is_in_sync=False,
        offsets_left=None if row is None else row.offsets_left,
        bytes_left=None if row is None else row.bytes_left,
    )
