"""Partitions: their leaders, their replicas, and pages of them.

ElectLeaders (43), AlterPartitionReassignments (45), ListPartitionReassignments (46), DescribeTopicPartitions (75).
Source: KIP-183 and KIP-460 (elections), KIP-455 (reassignments), KIP-966 (pages of partitions, eligible leaders).
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

from http_api.ports.node import PlannedReassignment, ReassignmentRequest, ReplicaTarget
from http_api.protocol.errors import kafka_code_of
from http_api.protocol.kafka_codes import KafkaCode
from milena.model.access import Operation, ResourceType, allowing_command
from milena.model.errors import (
    BrokerNotFoundError,
    InvalidReplicationError,
    MilenaError,
    StaleVersionError,
)
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.items import (
    ITEMS_MAX,
    ItemError,
    by_topic,
    error_fields,
    invalid,
    too_many,
    wait_ms,
)
from node.kafka.apis.metadata import LISTENER_CODE_FROM, partition_row
from node.kafka.rights import bits_of, needs
from node.services.in_time import in_time, unknown
from raft_meta.machine.access import audit
from raft_meta.machine.image import Image, PartitionKey, Topic
from raft_meta.machine.topics import reassignments

# -- ElectLeaders ----------------------------------------------------------------------------------

PREFERRED = 0
UNCLEAN = 1
"""The kinds of elections."""


@serves(43, "ElectLeaders", versions=(0, 2), access=needs("ALTER CLUSTER"))
async def _elect_leaders(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    asked = request.topic_partitions
    wanted = (
        None
        if asked is None
        else [(topic.topic, number) for topic in asked for number in topic.partitions]
    )
    refusal = None
    if not call.rights.permits_cluster(Operation.ALTER):
        refusal = _forbidden(call, Operation.ALTER)
    elif request.election_type not in {PREFERRED, UNCLEAN}:
        refusal = invalid(
            f"Elections of type {request.election_type} do not exist: ask for {PREFERRED} (preferred) or {UNCLEAN} "
            "(unclean)."
        )
    elif wanted is not None and len(wanted) > ITEMS_MAX:
        refusal = too_many(len(wanted))
    if refusal is not None:
        code = refusal.code if refusal.code == KafkaCode.CLUSTER_AUTHORIZATION_FAILED else 0
        rows = [(name, number, refusal) for name, number in wanted or ()]
        return _elected_rows(call, rows, code)
    keys = None
    try:
        async with in_time(wait_ms(request.timeout_ms), unknown("leaders may yet change")):
            if wanted is not None:
                image = await services.metadata.current_image()
                keys = {(image.topic_ids.get(name, ""), number) for name, number in wanted}
            elected = await services.elections.prefer(
                keys if request.election_type == PREFERRED else ()
            )
    except MilenaError as error:
        failed = ItemError.of(error)
        return _elected_rows(call, [(name, number, failed) for name, number in wanted or ()])
    image = services.metadata.image
    if wanted is None:
        # The partitions that needed no election are left out. Source: KIP-460.
        wanted = [(image.topics[topic_id].name, number) for topic_id, number in sorted(elected)]
    return _elected_rows(
        call,
        [
            (name, number, _election_result(image, name, number, elected, request.election_type))
            for name, number in wanted
        ],
    )


def _election_result(
    image: Image, name: str, number: int, elected: Collection[PartitionKey], kind: int
) -> ItemError | None:
    key = (image.topic_ids.get(name, ""), number)
    state = image.partitions.get(key)
    if state is None:
        return ItemError(
            KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name[:249]}-{number}."
        )
    if key in elected:
        return None
    if kind == UNCLEAN:
        if state.leader is not None:
            return ItemError(KafkaCode.ELECTION_NOT_NEEDED, "The partition has a leader.")
        return ItemError(
            KafkaCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            "No replica may lead now. The cluster elects one that is out of sync by itself if the topic has "
            "unclean.leader.election.enable=true.",
        )
    if state.leader == state.replicas[0]:
        return ItemError(KafkaCode.ELECTION_NOT_NEEDED, "The first replica leads already.")
    return ItemError(
        KafkaCode.PREFERRED_LEADER_NOT_AVAILABLE,
        f"The first replica, on broker {state.replicas[0]}, cannot lead now: it must be live and in sync, and the "
        "partition must not be moving.",
    )


def _forbidden(call: KafkaCall, operation: Operation) -> ItemError:
    principal = call.rights.known_principal
    command = allowing_command(principal, operation, ResourceType.CLUSTER, None)
    return ItemError(
        KafkaCode.CLUSTER_AUTHORIZATION_FAILED,
        f"{principal} may not {operation} the cluster: no access control entry allows it, or one denies it. "
        f"This adds an entry that allows it: {command}",
    )


def _elected_rows(
    call: KafkaCall, results: Iterable[tuple[str, int, ItemError | None]], code: int = 0
) -> Body:
    found = by_topic(
        (name, {"partition_id": number, **error_fields(call, result)})
        for name, number, result in results
    )
    rows = [{"topic": name, "partition_result": parts} for name, parts in found.items()]
    return call.answer({"error_code": call.note(code), "replica_election_results": rows})


# -- AlterPartitionReassignments -------------------------------------------------------------------


@serves(45, "AlterPartitionReassignments", versions=(0, 1), access=needs("ALTER CLUSTER"))
async def _alter_reassignments(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    # Of two targets of a partition, the last one counts, and both have its result.
    targets = {
        (topic.name, part.partition_index): ReplicaTarget(
            topic=topic.name,
            partition=part.partition_index,
            replicas=None if part.replicas is None else tuple(part.replicas),
        )
        for topic in request.topics
        for part in topic.partitions
    }
    fields: dict[str, Any] = {
        "allow_replication_factor_change": request.allow_replication_factor_change
    }
    may_change = request.allow_replication_factor_change
    if not call.rights.permits_cluster(Operation.ALTER):
        refusal = error_fields(call, _forbidden(call, Operation.ALTER))
        return call.answer({**fields, **refusal, "responses": []})
    count = sum(len(topic.partitions) for topic in request.topics)
    if count > ITEMS_MAX:
        refusal = error_fields(call, too_many(count))
        return call.answer({**fields, **refusal, "responses": []})
    try:
        async with in_time(wait_ms(request.timeout_ms), unknown("replicas may yet move")):
            done = await _reassigned(services, list(targets.values()), may_change_factor=may_change)
    except MilenaError as error:
        return call.answer({**fields, **error_fields(call, ItemError.of(error)), "responses": []})
    results = dict(zip(targets, done, strict=True))
    rows = [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": part.partition_index,
                    **error_fields(call, results[topic.name, part.partition_index]),
                }
                for part in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    return call.answer({**fields, **error_fields(call, None), "responses": rows})


async def _reassigned(
    services: KafkaServices, targets: Sequence[ReplicaTarget], *, may_change_factor: bool
) -> list[ItemError | None]:
    """Start the moves; return the reason of each that was refused, in order.

    Raises:
        MilenaError: the request was refused as a whole.
    """
    results: dict[int, ItemError | None] = {}
    if not may_change_factor:
        image = await services.metadata.current_image()
        results = {place: _factor_change(image, target) for place, target in enumerate(targets)}
    left = [place for place in range(len(targets)) if results.get(place) is None]
    # A request without partitions would balance the whole cluster.
    if left:
        planned = await services.reassignments.reassign(
            ReassignmentRequest(
                partitions=tuple(targets[place] for place in left), is_each_alone=True
            )
        )
        results |= {place: _refusal(row) for place, row in zip(left, planned, strict=True)}
    return [results[place] for place in range(len(targets))]


def _factor_change(image: Image, target: ReplicaTarget) -> ItemError | None:
    topic_id = image.topic_ids.get(target.topic, "")
    state = image.partition(topic_id, target.partition)
    if state is None or target.replicas is None or len(state.settled) == len(target.replicas):
        return None
    return ItemError(
        KafkaCode.INVALID_REPLICATION_FACTOR,
        f"The partition has {len(state.settled)} replicas, and the request does not allow another number, but it names "
        f"{len(target.replicas)}.",
    )


def _refusal(row: PlannedReassignment) -> ItemError | None:
    match row.error:
        case None:
            return None
        case StaleVersionError() as error if row.is_cancelled:
            return ItemError(KafkaCode.NO_REASSIGNMENT_IN_PROGRESS, error.message)
        case InvalidReplicationError() | BrokerNotFoundError() as error:
            return ItemError(KafkaCode.INVALID_REPLICA_ASSIGNMENT, error.message)
        case error:
            return ItemError.of(error)


# -- ListPartitionReassignments --------------------------------------------------------------------


@serves(46, "ListPartitionReassignments", versions=(0, 0), access=needs("DESCRIBE CLUSTER"))
async def _list_reassignments(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    if not call.rights.permits_cluster(Operation.DESCRIBE):
        return call.answer(
            {**error_fields(call, _forbidden(call, Operation.DESCRIBE)), "topics": []}
        )
    try:
        image = await services.metadata.current_image()
    except MilenaError as error:
        return call.answer({**error_fields(call, ItemError.of(error)), "topics": []})
    wanted: frozenset[tuple[str, int]] | None = None
    if request.topics is not None:
        wanted = frozenset(
            (topic.name, n) for topic in request.topics for n in topic.partition_indexes
        )
    found: list[tuple[str, dict[str, Any]]] = []
    for (topic_id, number), state in reassignments.running(image):
        name, move = image.topics[topic_id].name, state.moving
        assert move is not None, "running() gives partitions with a reassignment"
        if wanted is not None and (name, number) not in wanted:
            continue
        row = {
            "partition_index": number,
            "replicas": list(state.replicas),
            "adding_replicas": [b for b in move.target if b not in move.former],
            "removing_replicas": [b for b in move.former if b not in move.target],
        }
        found.append((name, row))
    topics = sorted(by_topic(found).items())
    rows = [{"name": name, "partitions": parts} for name, parts in topics]
    return call.answer({**error_fields(call, None), "topics": rows})


# -- DescribeTopicPartitions -----------------------------------------------------------------------

PARTITIONS_MAX = 2_000
"""Partitions in one response. Source: Kafka's ``max.request.partition.size.limit``."""


@serves(
    75,
    "DescribeTopicPartitions",
    versions=(0, 0),
    access=needs("DESCRIBE TOPIC", shows="DESCRIBE TOPIC"),
)
async def _describe_topic_partitions(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    image, cursor = services.metadata.image, request.cursor
    rights, kind = call.rights, ResourceType.TOPIC
    names = sorted({topic.name for topic in request.topics})
    forbidden = {name for name in names if not rights.permits(Operation.DESCRIBE, kind, name)}
    if not names:
        names = sorted(filter(rights.seen(kind), image.topic_ids))
    first = 0
    if cursor is not None:
        names = names[bisect_left(names, cursor.topic_name) :]
        if names and names[0] == cursor.topic_name:
            first = max(0, cursor.partition_index)
    missing = int(KafkaCode.UNKNOWN_TOPIC_OR_PARTITION)
    if any(name not in image.topic_ids for name in names if name not in forbidden):
        # The client may have seen the topic at another node, so this node's image may be behind.
        try:
            image = await services.metadata.current_image()
        except MilenaError as error:
            missing = kafka_code_of(error)
    left = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    rows: list[dict[str, Any]] = []
    next_cursor = None
    for name in names:
        topic = None if name in forbidden else image.topic(name)
        if left == 0:
            next_cursor = {"topic_name": name, "partition_index": 0}
            break
        if topic is None:
            left -= 1
            code = KafkaCode.TOPIC_AUTHORIZATION_FAILED if name in forbidden else missing
            call.note(code)
            rows.append({"error_code": code, "name": name, "partitions": []})
            continue
        numbers = range(first, min(topic.partition_count, first + left))
        rows.append(_topic_row(services, call, topic, numbers))
        left -= len(numbers)
        end, first = first + len(numbers), 0
        if end < topic.partition_count:
            next_cursor = {"topic_name": name, "partition_index": end}
            break
    return call.answer({"topics": rows, "next_cursor": next_cursor})


def _topic_row(
    services: KafkaServices, call: KafkaCall, topic: Topic, numbers: Iterable[int]
) -> dict[str, Any]:
    return {
        "error_code": KafkaCode.NONE,
        "name": topic.name,
        "topic_id": UUID(hex=topic.topic_id),
        "is_internal": topic.name == audit.TOPIC,
        "partitions": [_partition_fields(services, call, topic, number) for number in numbers],
        "topic_authorized_operations": bits_of(
            call.rights.operations(ResourceType.TOPIC, topic.name)
        ),
    }


def _partition_fields(
    services: KafkaServices, call: KafkaCall, topic: Topic, number: int
) -> dict[str, Any]:
    image = services.metadata.image
    state = image.partition(topic.topic_id, number)
    row = partition_row(
        image,
        number,
        state,
        own=services.metadata.node_id,
        version=LISTENER_CODE_FROM,
        listener=call.address.listener,
    )
    return {
        "error_code": row.error_code,
        "partition_index": number,
        "leader_id": row.leader,
        "leader_epoch": row.leader_epoch,
        "replica_nodes": list(row.replicas),
        "isr_nodes": list(row.isr),
        "eligible_leader_replicas": [] if state is None else list(state.eligible),
        "last_known_elr": [],
        "offline_replicas": list(row.offline),
    }


APIS = (_elect_leaders, _alter_reassignments, _list_reassignments, _describe_topic_partitions)
