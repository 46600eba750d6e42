"""Views of transactions: DescribeProducers (61), DescribeTransactions (65), ListTransactions (66).

A client asks every broker for its transactions. Each broker lists those whose hash it owns, so none is there twice. Any
broker describes any transactional id. Only the leader of a partition describes its producers.

Source: KIP-664; KIP-994 (filter by duration).
"""

from collections.abc import Callable, Mapping
from typing import Any

from http_api.protocol.kafka_codes import KafkaCode
from milena.model.access import Operation, ResourceType
from milena.model.errors import MilenaError
from milena.model.turns import one_turn
from node.config.budgets import BARRIER_MS
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.groups import check_count, reachable
from node.kafka.apis.leading import led_here
from node.kafka.rights import needs
from node.replica.runner import PartitionRunner
from raft_meta.machine.groups.coordinators import chosen
from raft_meta.machine.image import Image, KafkaTransactionalId
from raft_meta.machine.producers import ABORTED, COMMITTED

STATES = {"": "Empty", COMMITTED: "CompleteCommit", ABORTED: "CompleteAbort"}
"""Names of the states without an open transaction, by how the last one ended."""
ONGOING = "Ongoing"
ROWS_PER_TURN = 500
"""Transactional ids after which the event loop does other work: a few milliseconds."""
PRODUCERS_MAX = 10_000
"""Largest number of producers in a response: those that wrote last."""


def _state_of(row: KafkaTransactionalId) -> str:
    return ONGOING if row.is_open else STATES[row.last]


@serves(66, "ListTransactions", versions=(0, 1), access=needs(shows="DESCRIBE TRANSACTIONAL_ID"))
async def _list(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    states, ids = request.state_filters, request.producer_id_filters
    check_count(len(states) + len(ids))
    known = {ONGOING, *STATES.values()}
    unknown = [state for state in dict.fromkeys(states) if state not in known]
    longest_ms = request.duration_filter if call.version >= 1 else -1
    try:
        # Nodes with different images might each take another one for the one that lists a transaction.
        image = await services.metadata.current_image()
    except MilenaError:
        code = call.note(KafkaCode.COORDINATOR_NOT_AVAILABLE)
        return call.answer(
            {"error_code": code, "unknown_state_filters": unknown, "transaction_states": []}
        )
    now_ms = services.clock.wall_ms()
    coordinators, own = reachable(services, call), services.metadata.node_id
    is_seen = call.rights.seen(ResourceType.TRANSACTIONAL_ID)
    # A filter by producer ids needs no look at all rows.
    names = [image.transactional_names.get(number, "") for number in ids]
    rows = []
    for place, name in enumerate(dict.fromkeys(names) if ids else image.transactional_ids):
        if place % ROWS_PER_TURN == 0:
            await one_turn()
        row = image.transactional_ids.get(name)
        if (
            row is not None
            and is_seen(name)
            and (not states or _state_of(row) in states)
            and (longest_ms < 0 or (row.is_open and now_ms - row.began_ms > longest_ms))
            and (call.address.is_shared or chosen(coordinators, name) == own)
        ):
            rows.append(
                {
                    "transactional_id": name,
                    "producer_id": row.producer_id,
                    "transaction_state": _state_of(row),
                }
            )
    return call.answer(
        {
            "error_code": KafkaCode.NONE,
            "unknown_state_filters": unknown,
            "transaction_states": rows,
        }
    )


@serves(
    65,
    "DescribeTransactions",
    versions=(0, 0),
    access=needs("DESCRIBE TRANSACTIONAL_ID", shows="DESCRIBE TOPIC"),
)
async def _describe(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    check_count(len(request.transactional_ids))
    kind = ResourceType.TRANSACTIONAL_ID
    # Once each: a row may be large, and a request may name one id ten thousand times.
    may = {
        name: call.rights.permits(Operation.DESCRIBE, kind, name)
        for name in request.transactional_ids
    }
    try:
        image = await services.metadata.barrier(timeout_ms=BARRIER_MS)
    except MilenaError:
        code = call.note(KafkaCode.COORDINATOR_NOT_AVAILABLE)
        refused = [_no_row(name, code) for name in may]
        return call.answer({"transaction_states": refused})
    is_seen = call.rights.seen(ResourceType.TOPIC)
    rows = []
    for name, is_permitted in may.items():
        code = KafkaCode.TRANSACTIONAL_ID_NOT_FOUND
        if not is_permitted:
            code = KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif name in image.transactional_ids:
            rows.append(_row(image, image.transactional_ids[name], is_seen))
            continue
        rows.append(_no_row(name, call.note(code)))
    return call.answer({"transaction_states": rows})


def _row(image: Image, row: KafkaTransactionalId, is_seen: Callable[[str], bool]) -> dict[str, Any]:
    numbers: dict[str, list[int]] = {}
    for topic_id, partition in row.partitions:
        topic = image.topics[topic_id].name
        if is_seen(topic):
            numbers.setdefault(topic, []).append(partition)
    return {
        "error_code": KafkaCode.NONE,
        "transactional_id": row.name,
        "transaction_state": _state_of(row),
        "transaction_timeout_ms": row.timeout_ms,
        "transaction_start_time_ms": row.began_ms if row.is_open else -1,
        "producer_id": row.producer_id,
        "producer_epoch": row.producer_epoch,
        "topics": [{"topic": name, "partitions": found} for name, found in numbers.items()],
    }


def _no_row(name: str, code: int) -> dict[str, Any]:
    return {
        "error_code": code,
        "transactional_id": name,
        "transaction_state": "",
        "transaction_timeout_ms": 0,
        "transaction_start_time_ms": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": [],
    }


@serves(61, "DescribeProducers", versions=(0, 0), access=needs("READ TOPIC"))
async def _describe_producers(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    check_count(sum(len(topic.partition_indexes) for topic in request.topics))
    left = PRODUCERS_MAX
    topics = []
    for topic in request.topics:
        known = services.metadata.image.topic(topic.name)
        may = call.rights.permits(Operation.READ, ResourceType.TOPIC, topic.name)
        partitions = []
        for number in topic.partition_indexes:
            found = led_here(services, known, number)
            if not may:
                found = KafkaCode.TOPIC_AUTHORIZATION_FAILED
            row: dict[str, Any] = {
                "partition_index": number,
                "error_code": KafkaCode.NONE,
                "error_message": None,
                "active_producers": [],
            }
            if isinstance(found, PartitionRunner):
                row["active_producers"] = _producers_in(services.metadata.image, found, left)
                left -= len(row["active_producers"])
            else:
                row["error_code"] = call.note(found)
            partitions.append(row)
        topics.append({"name": topic.name, "partitions": partitions})
    return call.answer({"topics": topics})


def _producers_in(image: Image, runner: PartitionRunner, most: int) -> list[dict[str, Any]]:
    """Return the producers that a log knows. An open transaction counts for the client that writes in it."""
    began = _began_by_client(image, runner)
    entries = runner.log.writers.producers.freeze()
    rows = []
    for producer_id in list(entries)[-most:] if most > 0 else ():
        entry = entries[producer_id]
        producer = image.producers.get(producer_id)
        if producer is not None and producer.name in image.transactional_ids:
            continue  # the identity of transactions of a Kafka client, which has a row of its own
        rows.append(
            {
                "producer_id": producer_id,
                "producer_epoch": entry.producer_epoch,
                "last_sequence": entry.batches[-1].last_sequence,
                "last_timestamp": entry.append_time_ms,
                "coordinator_epoch": -1,
                "current_txn_start_offset": began.get(producer_id, -1),
            }
        )
    return rows


def _began_by_client(image: Image, runner: PartitionRunner) -> Mapping[int, int]:
    """Return the first offset of each open transaction, by the producer id that its client uses."""
    began: dict[int, int] = {}
    for (producer_id, _), found in runner.log.writers.transactions.open.items():
        producer = image.producers.get(producer_id)
        name = None if producer is None else producer.name
        row = None if name is None else image.transactional_ids.get(name)
        began.setdefault(producer_id if row is None else row.producer_id, found.first_offset)
    return began


APIS = (_describe_producers, _describe, _list)
