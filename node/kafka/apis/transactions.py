"""Transactions: AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26), TxnOffsetCommit (28).

The state of transactions is in the image, so any node serves these requests (``transactional_ids``). Only
TxnOffsetCommit goes to the coordinator of its group, which knows the members.

A code tells the client how to continue. Codes of unavailable coordinators are retried. A commit that was refused has
UNKNOWN_PRODUCER_ID: the client then aborts and goes on. The codes of fenced clients and of wrong states end the client.

Source: Kafka's protocol guide, KIP-98, KIP-447 (members in TxnOffsetCommit), KIP-588 (PRODUCER_FENCED), KIP-890 (a new
epoch for each transaction).
"""

from collections.abc import Mapping

from http_api.ports.groups import OffsetToCommit
from http_api.protocol.errors import kafka_code_of
from http_api.protocol.kafka_codes import KafkaCode
from http_api.records.producer_owners import authorize_transactional_id
from milena.model.access import Operation, ResourceType
from milena.model.errors import (
    ConflictError,
    FateUnknownError,
    FencedError,
    GroupNotEmptyError,
    InvalidConsumerError,
    InvalidProducerError,
    MilenaError,
    NotCoordinatorError,
    PartitionNotFoundError,
    RequestTooLargeError,
    StaleMemberEpochError,
    StaleProducerEpochError,
    TooManyTransactionsError,
    TopicNotFoundError,
    TransactionAbortedError,
    TransactionNotFoundError,
    UnavailableError,
)
from node.config.budgets import BARRIER_MS
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.groups import check_count, group_code_of, invalid_group
from node.kafka.apis.items import by_topic
from node.kafka.rights import needs
from node.kafka.wire import cold
from node.services.own_topics import check_written_by_clients
from node.services.transactions.transactional_ids import KafkaProducer
from raft_meta.machine.image import PartitionKey
from raft_meta.machine.transactional_ids import own_producer

FENCED_FROM = 2
"""The first versions of 24 to 26 in which a fenced client gets PRODUCER_FENCED."""
RAISES_FROM = 5
"""The first version of EndTxn in which the client gets its next epoch, and of TxnOffsetCommit in which the group joins
the transaction (KIP-890)."""
_Partition = tuple[str, int]


def transaction_code_of(error: MilenaError, is_fenced_known: bool) -> KafkaCode:
    """Return Kafka's code for an error of a request about a transaction.

    ``is_fenced_known``: whether the version of the request has PRODUCER_FENCED.
    """
    code = KafkaCode(kafka_code_of(error))
    match error:
        case InvalidProducerError():
            code = KafkaCode.INVALID_PRODUCER_ID_MAPPING
        case StaleProducerEpochError():
            code = (
                KafkaCode.PRODUCER_FENCED if is_fenced_known else KafkaCode.INVALID_PRODUCER_EPOCH
            )
        case TransactionNotFoundError():
            code = KafkaCode.INVALID_TXN_STATE
        case TransactionAbortedError():
            code = KafkaCode.UNKNOWN_PRODUCER_ID
        case TooManyTransactionsError():
            code = KafkaCode.CONCURRENT_TRANSACTIONS
        case NotCoordinatorError():
            code = KafkaCode.NOT_COORDINATOR
        case UnavailableError() | FateUnknownError():
            # Each request may be repeated, whether or not it took effect.
            code = KafkaCode.COORDINATOR_NOT_AVAILABLE
        case RequestTooLargeError():
            code = KafkaCode.POLICY_VIOLATION
        case _ if type(error) is ConflictError:
            code = KafkaCode.INVALID_REQUEST
        case _:
            pass
    return code


# -- AddPartitionsToTxn ----------------------------------------------------------------------------


@serves(
    24, "AddPartitionsToTxn", versions=(0, 3), access=needs("WRITE TOPIC", "WRITE TRANSACTIONAL_ID")
)
async def _add_partitions(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    topics = request.v3_and_below_topics
    check_count(sum(len(topic.partitions) for topic in topics))
    named = list(
        dict.fromkeys((topic.name, number) for topic in topics for number in topic.partitions)
    )
    codes: dict[_Partition, KafkaCode] = {}
    try:
        await authorize_transactional_id(
            call.rights, services.admin, request.v3_and_below_transactional_id
        )
        keys, refused = await _keys_of(services, call, named)
        if refused:
            # All or nothing, as in Kafka.
            codes = dict.fromkeys(named, KafkaCode.OPERATION_NOT_ATTEMPTED)
            codes |= {key: KafkaCode(kafka_code_of(error)) for key, error in refused.items()}
        else:
            client = KafkaProducer(
                request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
            )
            name = request.v3_and_below_transactional_id
            await services.transactional_ids.enlist(name, client, keys)
    except MilenaError as error:
        codes = dict.fromkeys(named, transaction_code_of(error, call.version >= FENCED_FROM))
    found = by_topic(
        (
            name,
            {
                "partition_index": number,
                "partition_error_code": call.note(codes.get((name, number), KafkaCode.NONE)),
            },
        )
        for name, number in named
    )
    rows = [{"name": name, "results_by_partition": parts} for name, parts in found.items()]
    return call.answer({"results_by_topic_v3_and_below": rows})


async def _keys_of(
    services: KafkaServices, call: KafkaCall, named: list[_Partition]
) -> tuple[list[PartitionKey], Mapping[_Partition, MilenaError]]:
    """Return the keys of partitions, and the reasons for those that a client cannot write to."""
    image = services.metadata.image
    if any(topic not in image.topic_ids for topic, _ in named):
        # The client has seen the topic at another node, so this node's image may be behind.
        image = await services.metadata.barrier(timeout_ms=BARRIER_MS)
    keys: list[PartitionKey] = []
    refused: dict[_Partition, MilenaError] = {}
    for name, number in named:
        topic = image.topic(name)
        try:
            call.rights.authorize(Operation.WRITE, ResourceType.TOPIC, (name,))
            check_written_by_clients(name)
            if topic is None:
                raise TopicNotFoundError(f"there is no topic {name!r}")
            if not 0 <= number < topic.partition_count:
                raise PartitionNotFoundError(f"topic {name!r} has no partition {number}")
        except MilenaError as error:
            refused[name, number] = error
        else:
            keys.append((topic.topic_id, number))
    return keys, refused


# -- AddOffsetsToTxn -------------------------------------------------------------------------------


@serves(
    25, "AddOffsetsToTxn", versions=(0, 4), access=needs("READ GROUP", "WRITE TRANSACTIONAL_ID")
)
async def _add_offsets(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    code = invalid_group(request.group_id) or KafkaCode.NONE
    if code is KafkaCode.NONE:
        try:
            await authorize_transactional_id(call.rights, services.admin, request.transactional_id)
            call.rights.authorize(Operation.READ, ResourceType.GROUP, (request.group_id,))
            await services.transactional_ids.enlist_group(
                request.transactional_id, _client_of(request), request.group_id
            )
        except MilenaError as error:
            code = transaction_code_of(error, call.version >= FENCED_FROM)
    return call.answer({"error_code": call.note(code)})


def _client_of(request: cold.Message) -> KafkaProducer:
    return KafkaProducer(request.producer_id, request.producer_epoch)


# -- TxnOffsetCommit -------------------------------------------------------------------------------


@serves(
    28,
    "TxnOffsetCommit",
    versions=(0, 5),
    access=needs("READ GROUP", "READ TOPIC", "WRITE TRANSACTIONAL_ID"),
)
async def _txn_offset_commit(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    check_count(sum(len(topic.partitions) for topic in request.topics))
    codes: dict[_Partition, int] = {}
    code = invalid_group(request.group_id) or KafkaCode.NONE
    if code is KafkaCode.NONE:
        try:
            await authorize_transactional_id(call.rights, services.admin, request.transactional_id)
            call.rights.authorize(Operation.READ, ResourceType.GROUP, (request.group_id,))
            codes = await _stage(services, call, request)
        except MilenaError as error:
            code = _staging_code_of(error)
    rows = [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": row.partition_index,
                    "error_code": call.note(
                        code or codes.get((topic.name, row.partition_index), KafkaCode.NONE)
                    ),
                }
                for row in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    return call.answer({"topics": rows})


async def _stage(
    services: KafkaServices, call: KafkaCall, request: cold.Message
) -> dict[_Partition, int]:
    """Stage the offsets of a request; return the codes of those that were refused alone."""
    offsets: list[OffsetToCommit] = []
    codes: dict[_Partition, int] = {}
    for topic in request.topics:
        may = call.rights.permits(Operation.READ, ResourceType.TOPIC, topic.name)
        for row in topic.partitions:
            if not may:
                code = int(KafkaCode.TOPIC_AUTHORIZATION_FAILED)
                codes[topic.name, row.partition_index] = code
                continue
            if row.committed_offset < 0:
                codes[topic.name, row.partition_index] = int(KafkaCode.OFFSET_OUT_OF_RANGE)
                continue
            offset = OffsetToCommit(
                topic=topic.name,
                partition=row.partition_index,
                offset=row.committed_offset,
                leader_epoch=row.committed_leader_epoch if call.version >= 2 else -1,
                metadata=row.committed_metadata or "",
            )
            offsets.append(offset)
    names_member = call.version >= 3
    commit, refused = await services.groups.staged(
        request.group_id,
        offsets,
        member_id=request.member_id if names_member else "",
        generation=request.generation_id if names_member else -1,
        instance_id=request.group_instance_id if names_member else None,
    )
    for key, error in refused.items():
        is_metadata = isinstance(error, InvalidConsumerError)
        own = KafkaCode.OFFSET_METADATA_TOO_LARGE if is_metadata else _staging_code_of(error)
        codes[key] = int(own)
    if commit is not None:
        await services.transactional_ids.stage(
            request.transactional_id,
            _client_of(request),
            commit,
            enlists=call.version >= RAISES_FROM,
        )
    return codes


def _staging_code_of(error: MilenaError) -> KafkaCode:
    """Return Kafka's code for offsets that were not staged: of the transaction, or of the group."""
    if isinstance(error, GroupNotEmptyError):
        return KafkaCode.UNKNOWN_MEMBER_ID
    if isinstance(error, StaleMemberEpochError):
        return KafkaCode.ILLEGAL_GENERATION
    is_of_group = isinstance(error, FencedError) and not isinstance(error, StaleProducerEpochError)
    return group_code_of(error) if is_of_group else transaction_code_of(error, False)


# -- EndTxn ----------------------------------------------------------------------------------------


@serves(26, "EndTxn", versions=(0, 5), access=needs("WRITE TRANSACTIONAL_ID"))
async def _end_txn(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    raises_client = call.version >= RAISES_FROM
    # A client without KIP-890 keeps its epoch. If its connection broke, it has repeated the request, and may have
    # started the next transaction before this attempt goes on. So the attempt may end only what is open as it comes in.
    meant = None if raises_client else services.transactional_ids.open_now(request.transactional_id)
    client = KafkaProducer(-1, -1)
    code = KafkaCode.NONE
    try:
        await authorize_transactional_id(call.rights, services.admin, request.transactional_id)
        if not request.committed:
            await _note_abort(services, request)
        client = await services.transactional_ids.end(
            request.transactional_id,
            _client_of(request),
            is_commit=request.committed,
            raises_client=raises_client,
            meant=meant,
        )
    except MilenaError as error:
        is_abortable = raises_client and isinstance(error, TransactionAbortedError)
        code = transaction_code_of(error, call.version >= FENCED_FROM)
        code = KafkaCode.TRANSACTION_ABORTABLE if is_abortable else code
    return call.answer({"error_code": call.note(code), **client._asdict()})


async def _note_abort(services: KafkaServices, request: cold.Message) -> None:
    """If the request aborts an open transaction, write that to the audit log first, as the HTTP API does.

    Raises:
        NoQuorumError: the entry could not be written, so the transaction must not be aborted.
    """
    image = await services.metadata.current_image()
    row = image.transactional_ids.get(request.transactional_id)
    if (
        row is None
        or not row.is_open
        or _client_of(request) != (row.producer_id, row.producer_epoch)
    ):
        # Nothing is aborted. The request is refused, or a repeated one.
        return
    own = own_producer(image, row)
    change = {
        "transactional_id": row.name,
        "producer_id": own.producer_id,
        "producer_epoch": own.producer_epoch,
    }
    await services.admin.note("abort_transaction", change)


APIS = (_add_partitions, _add_offsets, _end_txn, _txn_offset_commit)
