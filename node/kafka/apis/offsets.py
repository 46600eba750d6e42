"""ListOffsets (2) and OffsetForLeaderEpoch (23): where a partition begins and ends, and at which time or epoch.

Source: KIP-79 (search by time), KIP-207 and KIP-320 (leader epochs), KIP-734 (greatest time), KIP-405 and KIP-1005
(tiers: all records are local).
"""

from collections.abc import Awaitable, Callable

from http_api.protocol.errors import kafka_code_of
from http_api.protocol.kafka_codes import KafkaCode
from milena.model.access import Operation, ResourceType
from milena.model.errors import CorruptLogError, MilenaError
from milena.model.requests import FetchRequest
from milena.model.turns import one_turn
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.items import repeated
from node.kafka.apis.leading import led_here, taken_over
from node.kafka.rights import needs
from node.kafka.wire import cold
from node.kafka.wire.primitives import ITEMS_MAX, MalformedFrameError
from node.replica.runner import PartitionRunner

LATEST, EARLIEST, GREATEST_TIME, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(
    -1, -7, -1
)
"""Times that stand for places in a partition. There are no tiers here, so the last two stand for none."""
FIRST_VERSIONS = {
    GREATEST_TIME: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version in which a client may send such a time; 1 for those that are not here."""
UNKNOWN = -1
ROWS_PER_TURN = 200
"""Partitions after which the event loop does other work: a few milliseconds."""

Row = Callable[
    [KafkaServices, KafkaCall, str, cold.Message, cold.Message], Awaitable[dict[str, object]]
]


async def _each(
    services: KafkaServices,
    call: KafkaCall,
    request: cold.Message,
    row: Row,
    *,
    name: str,
    number: str,
    is_each_once: bool = False,
) -> list[dict[str, object]]:
    """Return the response's topics. ``name``, ``number``: the fields that have the names of topic and partition.

    ``is_each_once``: refuse a partition that is in the request more than once, in one row.
    """
    asked = request.topics or ()
    if max(len(asked), sum(len(topic.partitions or ()) for topic in asked)) > ITEMS_MAX:
        raise MalformedFrameError(f"a request for more than {ITEMS_MAX} partitions")
    keys = [(getattr(one, name), getattr(p, number)) for one in asked for p in one.partitions or ()]
    ambiguous = repeated(keys) if is_each_once else frozenset()
    told: set[tuple[str, int]] = set()
    topics: list[dict[str, object]] = []
    for place, topic in enumerate(asked):
        parts = topic.partitions or ()
        if place % ROWS_PER_TURN == 0:
            await one_turn()
        if call.rights.permits(Operation.DESCRIBE, ResourceType.TOPIC, getattr(topic, name)):
            rows = []
            for part in parts:
                key = (getattr(topic, name), getattr(part, number))
                if key not in ambiguous:
                    rows.append(await row(services, call, key[0], request, part))
                elif key not in told:
                    told.add(key)
                    rows.append({number: key[1], "error_code": KafkaCode.INVALID_REQUEST})
                if len(rows) % ROWS_PER_TURN == 0:
                    await one_turn()
        else:
            refused = KafkaCode.TOPIC_AUTHORIZATION_FAILED
            rows = [{number: getattr(part, number), "error_code": refused} for part in parts]
        for found in rows:
            code = found["error_code"]
            assert isinstance(code, int), "every row has a code"
            call.note(code)
        topics.append({name: getattr(topic, name), "partitions": rows})
    return topics


@serves(2, "ListOffsets", versions=(1, 11), access=needs("DESCRIBE TOPIC"))
async def _list_offsets(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    topics = await _each(
        services,
        call,
        request,
        _offset_row,
        name="name",
        number="partition_index",
        is_each_once=True,
    )
    return call.answer({"topics": topics})


async def _offset_row(
    services: KafkaServices, call: KafkaCall, name: str, request: cold.Message, part: cold.Message
) -> dict[str, object]:
    number = part.partition_index
    if part.timestamp < EARLIEST and call.version < FIRST_VERSIONS.get(part.timestamp, 1 << 15):
        return {"partition_index": number, "error_code": KafkaCode.UNSUPPORTED_VERSION}
    topic = services.metadata.image.topic(name)
    await taken_over(services, call, topic, number)
    runner = led_here(services, topic, number, part.current_leader_epoch)
    if isinstance(runner, KafkaCode):
        return {"partition_index": number, "error_code": runner}
    try:
        # Version 1 has no isolation level; it meant all records.
        is_uncommitted = request.isolation_level == 0
        offset, timestamp_ms = await _found(services, runner, part.timestamp, is_uncommitted)
    except CorruptLogError:
        # The copy is checked now. A client looks the offset up again, perhaps at another leader.
        return {"partition_index": number, "error_code": KafkaCode.LEADER_NOT_AVAILABLE}
    except MilenaError as error:
        return {"partition_index": number, "error_code": kafka_code_of(error)}
    return {
        "partition_index": number,
        "error_code": KafkaCode.NONE,
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": runner.leader_epoch if offset >= 0 else UNKNOWN,
    }


async def _found(
    services: KafkaServices, runner: PartitionRunner, timestamp: int, is_uncommitted: bool
) -> tuple[int, int]:
    """Return the offset for a timestamp of Kafka, and the timestamp of the record there; -1: none."""
    if timestamp in {EARLIEST, EARLIEST_LOCAL}:
        return runner.log.log_start_offset, UNKNOWN
    if timestamp == LATEST:
        result = await services.reads.fetch(
            FetchRequest(
                topic=runner.topic,
                partition=runner.partition,
                offset="latest",
                timestamp_ms=None,
                max_bytes=1,
                timeout_ms=0,
                is_local=False,
                is_uncommitted=is_uncommitted,
            )
        )
        return result.start_offset, UNKNOWN
    if timestamp == GREATEST_TIME:
        found = await runner.record_at_greatest_time(is_uncommitted=is_uncommitted)
    elif timestamp < 0:
        return UNKNOWN, UNKNOWN
    else:
        found = await runner.record_at_time(timestamp, is_uncommitted=is_uncommitted)
    if found is None or found[0] >= runner.readable_end(is_uncommitted=is_uncommitted):
        return UNKNOWN, UNKNOWN
    return found


@serves(23, "OffsetForLeaderEpoch", versions=(2, 4), access=needs("DESCRIBE TOPIC"))
async def _offsets_for_epochs(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    topics = await _each(services, call, request, _epoch_row, name="topic", number="partition")
    return call.answer({"topics": topics})


async def _epoch_row(
    services: KafkaServices, call: KafkaCall, name: str, request: cold.Message, part: cold.Message
) -> dict[str, object]:
    del request
    topic = services.metadata.image.topic(name)
    await taken_over(services, call, topic, part.partition)
    runner = led_here(services, topic, part.partition, part.current_leader_epoch)
    if isinstance(runner, KafkaCode):
        return {"partition": part.partition, "error_code": runner}
    epoch, end = runner.log.state.epoch_end(part.leader_epoch)
    return {
        "partition": part.partition,
        "error_code": KafkaCode.NONE,
        "leader_epoch": epoch,
        "end_offset": end,
    }


APIS = (_list_offsets, _offsets_for_epochs)
