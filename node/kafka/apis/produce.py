"""Produce (0): record batches from Kafka clients, stored as they came.

Batches are appended in the order of requests: the handler returns when each batch has its place in its log, and the
connection starts the next request then. The responses wait for the acknowledgements. A request with acks=0 has no
response; if it fails, the connection ends, so that the client asks for the leaders again.
"""

from dataclasses import dataclass

from http_api.protocol.errors import kafka_code_of
from http_api.protocol.kafka_codes import KafkaCode
from http_api.records.producer_owners import authorize_producer_id, authorize_transactional_id
from milena.model.access import Operation, ResourceType
from milena.model.batch.header import BatchHeader
from milena.model.batch.v2 import decode_head
from milena.model.errors import (
    CorruptBatchError,
    FeatureLevelError,
    InvalidProducerError,
    InvalidRecordError,
    MalformedRequestError,
    MilenaError,
    NotLeaderError,
    PartitionNotFoundError,
    StaleProducerEpochError,
    TopicNotFoundError,
    TransactionNotFoundError,
)
from milena.model.pending import Pending
from milena.model.requests import Acks, BatchReceipt
from milena.model.types import TimestampType
from node.kafka.apis.api import (
    Body,
    CloseConnectionError,
    KafkaCall,
    KafkaServices,
    Started,
    serves,
)
from node.kafka.apis.items import repeated
from node.kafka.apis.leading import addresses_of, leader_of, taken_over
from node.kafka.batches import in_transaction, is_transactional, stored
from node.kafka.refused_batches import KEPT_MS, KEPT_PASSING_MS, RefusedBatch
from node.kafka.rights import needs
from node.kafka.wire.produce import (
    IDS_FROM,
    LEADERS_FROM,
    ProducedRow,
    WireProduce,
    decode_request,
    encode_response,
)
from node.metadata.topic_settings import topic_settings
from node.services.own_topics import check_written_by_clients
from node.services.produce import REFUSED_BY_SETTINGS, check_takes_transactions
from node.services.to_leader import V2_LEVEL
from node.services.transactions.transactional_ids import KafkaProducer
from raft_meta.machine.image import Topic

SERVED_FROM = 3
"""The first version with record batches of version 2. The versions below are advertised, or librdkafka does not
compress (librdkafka issue 4956)."""
ENLISTS_FROM = 12
"""The first version in which records add their partition to the transaction (KIP-890)."""
REQUEST_BYTES_MAX = 32 << 20
_ACKS = {int(acks): acks for acks in Acks}
_PartitionKey = tuple[str, bytes, int]
"""The name of a topic, or its id, and a partition."""


@dataclass(slots=True)
class _Appending:
    """One partition of a request, and what became of its batch. Without a receipt, there is an error."""

    topic: Topic | None
    partition: int
    header: BatchHeader | None = None
    receipt: Pending[BatchReceipt] | None = None
    error: MilenaError | None = None
    batch: RefusedBatch | None = None
    """The batch of an idempotent producer as it is remembered if it is refused."""


@serves(
    0,
    "Produce",
    versions=(0, 13),
    access=needs("WRITE TOPIC", "WRITE TRANSACTIONAL_ID"),
    is_cold=False,
    bytes_max=REQUEST_BYTES_MAX,
    is_pipelined=True,
)
async def _produce(services: KafkaServices, call: KafkaCall) -> Body | Started:
    request = decode_request(call.reader, call.version)
    if call.version < SERVED_FROM:
        return _refused(call, request, KafkaCode.UNSUPPORTED_VERSION)
    acks = _ACKS.get(request.acks)
    if acks is None or (request.transactional_id is not None and acks is not Acks.ALL):
        return _refused(call, request, KafkaCode.INVALID_REQUIRED_ACKS)
    timeout_ms = min(max(1, request.timeout_ms), services.limits.produce_timeout_ms_max)
    ambiguous = _ambiguous(request)
    told: set[_PartitionKey] = set()
    begun: list[tuple[str, bytes, list[_Appending]]] = []
    for name, topic_id, partitions in request.topics:
        rows = []
        for part in partitions:
            key = (name, topic_id, part[0])
            if key in told:
                continue
            if key in ambiguous:
                told.add(key)
            rows.append(
                await _begin(
                    services,
                    call,
                    request,
                    _name_of(services, call, name, topic_id),
                    part,
                    acks=acks,
                    timeout_ms=timeout_ms,
                    is_ambiguous=key in ambiguous,
                )
            )
        if rows:
            begun.append((name, topic_id, rows))
    return Started(_finish(services, call, begun, has_response=acks is not Acks.NONE))


def _ambiguous(request: WireProduce) -> frozenset[_PartitionKey]:
    """Return the partitions that are in a request more than once. No client that is known to us sends one."""
    if len(request.topics) == 1 and len(request.topics[0][2]) == 1:
        return frozenset()
    return repeated(
        (name, topic_id, number)
        for name, topic_id, partitions in request.topics
        for number, _ in partitions
    )


def _name_of(services: KafkaServices, call: KafkaCall, name: str, topic_id: bytes) -> str:
    """Return the name of a topic in a request; empty for an id that does not exist."""
    if call.version < IDS_FROM:
        return name
    topic = services.metadata.image.topics.get(topic_id.hex())
    return "" if topic is None else topic.name


def _refused(call: KafkaCall, request: WireProduce, code: KafkaCode) -> Body:
    call.note(code)
    topics = [
        (name, topic_id, [ProducedRow(partition, code) for partition, _ in partitions])
        for name, topic_id, partitions in request.topics
    ]
    return encode_response(call.version, topics, [])


async def _begin(
    services: KafkaServices,
    call: KafkaCall,
    request: WireProduce,
    name: str,
    part: tuple[int, memoryview | None],
    *,
    acks: Acks,
    timeout_ms: int,
    is_ambiguous: bool,
) -> _Appending:
    """Give a batch its place in its log, or find out why it gets none.

    ``is_ambiguous``: the request has more batches for the partition. The response has room for one result, so none is
    written. Kafka writes the last one, and loses the others.
    """
    partition, records = part
    begun = _Appending(services.metadata.image.topic(name), partition)
    if begun.topic is not None and records:
        begun.batch = _sequenced(begun.topic, partition, records)
    try:
        if request.transactional_id is not None:
            await authorize_transactional_id(call.rights, services.admin, request.transactional_id)
        call.rights.authorize(Operation.WRITE, ResourceType.TOPIC, (name,))
        check_written_by_clients(name)
        if is_ambiguous:
            raise MalformedRequestError(
                f"the request has partition {partition} of topic {name!r} more than once: send one batch for a "
                "partition; nothing was written"
            )
        topic = begun.topic
        if topic is None:
            raise TopicNotFoundError(f"topic {name!r} does not exist")
        if not 0 <= partition < topic.partition_count:
            raise PartitionNotFoundError(f"topic {name!r} has no partition {partition}")
        if services.metadata.image.feature_level < V2_LEVEL:
            raise FeatureLevelError(
                f"record batches of Kafka need feature level {V2_LEVEL}, to which the cluster rises by itself once "
                "every node is of a release that supports it; nothing was written"
            )
        await taken_over(services, call, topic, partition)
        leader = leader_of(services, topic, partition)
        if leader is None or leader[0] != services.metadata.node_id:
            raise NotLeaderError(
                f"broker {services.metadata.node_id} does not lead {name}-{partition}; nothing was written"
            )
        if not records:
            raise InvalidRecordError("the request has no records for the partition")
        batch, header = await _checked(
            services, call, request, begun, topic, records=records, timeout_ms=timeout_ms
        )
        begun.header = header
        begun.receipt = services.produce.to_leader.append_led(
            topic, partition, batch, header, acks=acks, timeout_ms=timeout_ms
        )
    except MilenaError as error:
        begun.error = error
        _note_refused(services, call, begun)
    return begun


def _sequenced(topic: Topic, partition: int, records: memoryview) -> RefusedBatch | None:
    """Return the first sequence of a batch, with its partition and producer; None if it has no sequences."""
    try:
        head = decode_head(records)
    except CorruptBatchError:
        return None
    if head.producer_id < 0:
        return None
    return RefusedBatch(
        topic.topic_id, partition, head.producer_id, head.producer_epoch, head.base_sequence
    )


def _note_refused(services: KafkaServices, call: KafkaCall, part: _Appending) -> None:
    if part.batch is not None:
        principal = call.rights.known_principal
        services.refused_batches.note([part.batch], principal, services.clock.now_ms())
        call.refused.append(part.batch)


def is_behind_refused(services: KafkaServices, call: KafkaCall) -> bool:
    """Return whether a request must not be passed on to the leader: a batch before one of its batches was refused.

    Raises:
        MalformedFrameError: the frame does not hold the request.
    """
    refused, now_ms = services.refused_batches, services.clock.now_ms()
    if not refused.may_keep_back(now_ms):
        return False
    request = decode_request(call.reader, call.version)
    principal = call.rights.known_principal
    for name, topic_id, partitions in request.topics:
        topic = services.metadata.image.topic(_name_of(services, call, name, topic_id))
        for number, records in partitions:
            batch = _sequenced(topic, number, records) if topic is not None and records else None
            if batch is None:
                continue
            if refused.before(batch, principal, now_ms, kept_ms=KEPT_PASSING_MS) is not None:
                return True
    return False


def _check_order(services: KafkaServices, call: KafkaCall, batch: RefusedBatch | None) -> None:
    """Refuse a batch if one before it was refused, and the partition does not know the producer.

    Raises:
        InvalidProducerError: the batch before must come first. Clients repeat both.
    """
    refused, now_ms = services.refused_batches, services.clock.now_ms()
    if batch is None or not refused.may_keep_back(now_ms):
        return
    principal = call.rights.known_principal
    runner = services.replicas.find(batch.topic_id, batch.partition)
    if runner is not None and runner.log.writers.producers.get(batch.producer_id) is not None:
        refused.forget(batch, principal)
        return
    first = refused.before(batch, principal, now_ms, kept_ms=KEPT_MS)
    if first is not None:
        raise InvalidProducerError(
            f"producer {batch.producer_id} epoch {batch.producer_epoch}: expected sequence {first}, "
            f"got {batch.sequence} (the batch before was refused)"
        )


async def _checked(
    services: KafkaServices,
    call: KafkaCall,
    request: WireProduce,
    part: _Appending,
    topic: Topic,
    *,
    records: memoryview,
    timeout_ms: int,
) -> tuple[bytes, BatchHeader]:
    """Return the batch to append, and its header.

    Raises:
        MilenaError: the batch, its producer or its transaction is refused.
    """
    name = request.transactional_id
    if is_transactional(records) is not (name is not None):
        raise TransactionNotFoundError(
            "the records are transactional, and the request has no transactional id; nothing was written"
            if name is None
            else "the request has a transactional id, and the records are not transactional; nothing was written"
        )

    async def fitted(topic: Topic) -> tuple[bytes, BatchHeader]:
        settings, is_in_transaction = topic_settings(topic), name is not None
        now_ms = services.clock.wall_ms()
        made = await stored(records, settings, now_ms=now_ms, is_in_transaction=is_in_transaction)
        if is_in_transaction:
            check_takes_transactions(topic, settings)
        return made

    try:
        batch, header = await fitted(topic)
    except REFUSED_BY_SETTINGS:
        # Another node may have changed the settings a moment ago.
        batch, header = await fitted(await services.produce.current_topic(topic, timeout_ms))
    if name is None:
        if header.producer_id >= 0:
            await authorize_producer_id(
                call.rights,
                services.admin,
                header.producer_id,
                header.producer_epoch,
                may_raise_epoch=True,
            )
            await services.produce.check_producer(header, timeout_ms, may_raise_epoch=True)
            _check_order(services, call, part.batch)
        return batch, header
    client = KafkaProducer(header.producer_id, header.producer_epoch)
    try:
        found = await services.transactional_ids.transaction_of(
            name,
            client,
            (topic.topic_id, part.partition),
            enlists=call.version >= ENLISTS_FROM,
        )
    except InvalidProducerError as error:
        # The transactional id belongs to another client, which has another producer id.
        raise StaleProducerEpochError(f"{error.message} Nothing was written.") from error
    _check_order(services, call, part.batch)
    return in_transaction(batch, header, found)


async def _finish(
    services: KafkaServices,
    call: KafkaCall,
    begun: list[tuple[str, bytes, list[_Appending]]],
    *,
    has_response: bool,
) -> Body | None:
    """Wait for the acknowledgements, and return the response."""
    topics: list[tuple[str, bytes, list[ProducedRow]]] = []
    for name, topic_id, parts in begun:
        rows = []
        for part in parts:
            row = await _row(services, call, part)
            if row.error_code and not has_response:
                raise CloseConnectionError(part.error or NotLeaderError("nothing was written"))
            rows.append(row)
        topics.append((name, topic_id, rows))
    if not has_response:
        return None
    leaders = [row.leader for _, _, rows in topics for row in rows]
    addresses = addresses_of(services, call, leaders)
    return encode_response(call.version, topics, addresses, call.throttle_ms)


async def _row(services: KafkaServices, call: KafkaCall, part: _Appending) -> ProducedRow:
    if part.receipt is not None:
        try:
            return _receipt_row(services, part, await part.receipt)
        except MilenaError as late:
            part.error = late
            _note_refused(services, call, part)
    error = part.error
    assert error is not None, "it has a receipt or an error"
    is_by_id = part.topic is None and call.version >= IDS_FROM
    code = call.note(KafkaCode.UNKNOWN_TOPIC_ID if is_by_id else kafka_code_of(error))
    has_moved = code == KafkaCode.NOT_LEADER_OR_FOLLOWER and call.version >= LEADERS_FROM
    return ProducedRow(
        part.partition,
        code,
        message=error.message,
        records=error.records if isinstance(error, InvalidRecordError) else (),
        leader=leader_of(services, part.topic, part.partition) if has_moved else None,
    )


def _receipt_row(services: KafkaServices, part: _Appending, receipt: BatchReceipt) -> ProducedRow:
    assert part.header is not None, "it was appended"
    assert part.topic is not None, "it was appended"
    is_timed = part.header.timestamp_type is TimestampType.APPEND
    runner = services.replicas.find(part.topic.topic_id, part.partition)
    return ProducedRow(
        part.partition,
        KafkaCode.NONE,
        base_offset=-1 if receipt.base_offset is None else receipt.base_offset,
        append_time_ms=receipt.append_time_ms if is_timed and receipt.append_time_ms else -1,
        log_start_offset=-1 if runner is None else runner.log.log_start_offset,
    )


APIS = (_produce,)
