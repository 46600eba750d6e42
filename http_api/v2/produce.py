"""v2: produce. A body becomes columns, the node appends them, receipts become the answer.

What a client must know about one failed record is in its item; only when every record failed for one cause is it the
answer's own status. Nothing that may have been written is ever reported as refused.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from aiohttp import web

from http_api.answers import empty_answer, json_answer
from http_api.call import Call
from http_api.describing.params import Param, ParamPlace
from http_api.lookup import partition_number
from http_api.media import RecordFormat
from http_api.quick.plain_answer import PlainAnswer
from http_api.shapes.blocks import text
from http_api.v2.conditions import expected_end
from http_api.v2.produce_head import ProduceHead, read_head
from http_api.v2.transaction_header import named_transaction
from milena.model.errors import MalformedRequestError, UnsupportedMediaTypeError
from milena.model.requests import IdempotencyKey, ProduceReceipt, ProducerTransaction, Records
from milena.model.turns import LARGE_BYTES, Steps

_KEY_CHARS_MAX = 255

IDEMPOTENCY_KEY = Param(
    name="Idempotency-Key",
    place=ParamPlace.HEADER,
    description=(
        "a repeat with the same body gets the first answer and writes nothing, on any node; visible ASCII characters"
    ),
    schema=text(minLength=1, maxLength=_KEY_CHARS_MAX, pattern="^[!-~]+$"),
    example="payment-17",
)


async def produce_to_topic(call: Call) -> web.StreamResponse:
    """Append records; the node picks each one's partition, unless it names one."""
    return await _produce(call, None)


async def produce_to_partition(call: Call) -> web.StreamResponse:
    """Append records, or one encoded batch, to a partition."""
    partition = partition_number(call)
    return await _produce(call, partition)


async def _produce(call: Call, partition: int | None) -> web.StreamResponse:
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
    transaction = named_transaction(call, head.acks, is_conditional=end is not None)
    body = await call.body.whole()
    if head.format is RecordFormat.BATCH:
        return await _produce_batch(call, head, body, end, transaction)
    steps, size = head.decode(body), len(body)
    key = _idempotency(call, head, body, transaction)
    target = _Target(key, end, transaction)
    # The steps let go of it when they have come to their end: a large body need not stay longer.
    del body
    if size < LARGE_BYTES:
        receipts = await _append(call, head, steps, size, target)
    else:
        async with call.shared.turns.room(size, wait_ms=head.timeout_ms):
            receipts = await _append(call, head, steps, size, target)
    headers = tuple(head.headers.items())
    if head.is_async:
        return empty_answer(headers=headers)
    return PlainAnswer(head.encode(receipts), head.content_type, headers)


class _Target(NamedTuple):
    """What the headers say of where and whether records are written."""

    key: IdempotencyKey | None
    expected_end: int | None
    transaction: ProducerTransaction | None


async def _append(
    call: Call, head: ProduceHead, steps: Steps[Records], size: int, target: _Target
) -> Sequence[ProduceReceipt]:
    return await head.append(await call.shared.turns.run(steps, size), *target)


def idempotency_key(call: Call) -> str | None:
    """The request's key, if it has one.

    Raises:
        MalformedRequestError: it cannot be one.
    """
    key = call.request.headers.get(IDEMPOTENCY_KEY.name)
    if key is None:
        return None
    if not 1 <= len(key) <= _KEY_CHARS_MAX or not all("!" <= c <= "~" for c in key):
        raise MalformedRequestError(
            f"Idempotency-Key must be 1 to {_KEY_CHARS_MAX} visible ASCII characters"
        )
    return key


def _idempotency(
    call: Call, head: ProduceHead, body: bytes, transaction: ProducerTransaction | None
) -> IdempotencyKey | None:
    key = idempotency_key(call)
    if key is None:
        return None
    # The same bytes mean something else in another format or for another partition.
    body_hash = blake2b(f"{head.format}:{head.partition}:".encode(), digest_size=8)
    body_hash.update(body)
    scope = head.topic
    if transaction is not None:
        # No topic has a colon in its name: a key of a transaction is of that one alone.
        scope += f":{transaction.producer_id}:{transaction.producer_epoch}"
    return IdempotencyKey(
        key_hash=blake2b(f"{scope}\0{key}".encode(), digest_size=16).digest(),
        body_hash=body_hash.digest(),
    )


async def _produce_batch(
    call: Call,
    head: ProduceHead,
    body: bytes,
    end: int | None,
    transaction: ProducerTransaction | None,
) -> web.Response:
    if head.partition is None:
        raise UnsupportedMediaTypeError(
            "an encoded batch goes to one partition: POST it to /topics/{topic}/partitions/{partition}/records"
        )
    receipt = await call.ports.produce.produce_batch(
        head.topic,
        head.partition,
        body,
        acks=head.acks,
        timeout_ms=head.timeout_ms,
        expected_end=end,
        transaction=transaction,
        idempotency=_idempotency(call, head, body, transaction),
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
