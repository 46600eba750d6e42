"""v2 produce: decode a body to columns, let the node append them, encode the receipts as the response.

If a record fails, its item in the response has the error. If all records fail with the same error, it becomes the
status of the response. If a write may have happened, the error says that the result is unknown.
"""

from contextlib import nullcontext

from aiohttp import web

from http_api.protocol.answers import empty_answer, json_answer
from http_api.protocol.media import RecordFormat
from http_api.records.conditions import ExpectedEnd, expected_end
from http_api.records.idempotency_key import IDEMPOTENCY_KEY
from http_api.records.produce_head import ProduceHead, read_head
from http_api.records.producer_owners import authorize_producer_id
from http_api.records.transaction_header import named_transaction
from http_api.serving.call import Call
from http_api.serving.lookup import partition_number
from http_api.serving.plain_answer import PlainAnswer
from milena.model.batch.header import producer_in
from milena.model.errors import UnsupportedMediaTypeError
from milena.model.requests import ProducerTransaction
from milena.model.turns import LARGE_BYTES


async def produce(call: Call) -> web.StreamResponse:
    """Append records, or one encoded batch, to a partition; without one, the node chooses it for each record."""
    partition = partition_number(call.names) if "partition" in call.names else None
    head = read_head(
        call.ports,
        call.names["topic"],
        partition,
        raw_query=call.raw_query,
        content_type=call.header("Content-Type"),
        accept=call.header("Accept"),
        may_create=call.rights.may_create(call.names["topic"]),
    )
    end = expected_end(call, head.acks)
    transaction = await named_transaction(call, head.acks, is_conditional=end is not None)
    body = await call.body.whole()
    if head.format is RecordFormat.BATCH:
        return await _produce_batch(call, head, body, end, transaction)
    steps, size = head.decode(body), len(body)
    key = head.idempotency(_key(call), body, transaction)
    # ``steps`` still refers to the body, and releases it after decoding. Drop this reference, so that a large body does
    # not stay in memory until the response.
    del body
    turns = call.shared.turns
    async with nullcontext() if size < LARGE_BYTES else turns.room(size, wait_ms=head.timeout_ms):
        receipts = await head.append(await turns.run(steps, size), key, end, transaction)
    headers = tuple(head.headers.items())
    if head.is_async:
        return empty_answer(headers=headers)
    return PlainAnswer(head.encode(receipts), head.content_type, headers)


def _key(call: Call) -> str | None:
    return call.request.headers.get(IDEMPOTENCY_KEY.name)


async def _produce_batch(
    call: Call,
    head: ProduceHead,
    body: bytes,
    end: ExpectedEnd | None,
    transaction: ProducerTransaction | None,
) -> web.Response:
    if head.partition is None:
        raise UnsupportedMediaTypeError(
            "an encoded batch goes to one partition: POST it to /topics/{topic}/partitions/{partition}/records"
        )
    if transaction is None:
        producer = producer_in(body)
        if producer is not None:
            await authorize_producer_id(call.rights, call.ports.metadata, *producer)
    receipt = await call.ports.produce.produce_batch(
        head.topic,
        head.partition,
        body,
        acks=head.acks,
        timeout_ms=head.timeout_ms,
        expected_end=None if end is None else end.offset,
        topic_tag="" if end is None else end.topic_tag,
        transaction=transaction,
        idempotency=head.idempotency(_key(call), body, transaction),
        may_create=head.may_create,
    )
    if head.is_async:
        return empty_answer()
    return json_answer(
        {
            "partition": receipt.partition,
            "base_offset": receipt.base_offset,
            "last_offset": receipt.last_offset,
            "is_duplicate": receipt.is_duplicate,
            "leader_epoch": receipt.leader_epoch,
        }
    )
