"""v2: produce. A body becomes columns, the node appends them, receipts become the answer.

What a client must know about one failed record is in its item; only when every record failed for one cause is it the
answer's own status. Nothing that may have been written is ever reported as refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b

import orjson
from aiohttp import web

from http_api.answers import bytes_answer, json_answer, printable
from http_api.call import Call
from http_api.errors import row_of
from http_api.formats import binary_v2, json_v2
from http_api.lookup import partition_number
from http_api.media import RecordFormat, metadata_type, produce_format
from http_api.ports import Acks, IdempotencyKey, ProduceRequest, Receipt, Receipts, Records
from http_api.schemas import integer_param, parse_query
from storage.errors import (
    MalformedRequestError,
    MilenaError,
    UnsupportedMediaTypeError,
)

_ACKS = {"0": Acks.NONE, "1": Acks.LEADER, "-1": Acks.ALL, "all": Acks.ALL}

_KEY_CHARS_MAX = 255

_HEAD = b'{"offsets":['
_TAIL = b'],"key_schema_id":null,"value_schema_id":null}'
_ITEM_END = b',"error_code":null,"error":null}'

_Decoder = Callable[..., Records]
_DECODERS: dict[RecordFormat, _Decoder] = {
    RecordFormat.JSON: json_v2.decode,
    RecordFormat.BINARY: binary_v2.decode,
}


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """What the query string asks for."""

    acks: Acks
    timeout_ms: int | None
    """None: the server's default."""


@lru_cache(maxsize=512)
def parse_options(raw_query: str) -> ProduceOptions:
    """``?acks=0|1|all&timeout_ms=``; cached, because a producer sends the same with each request.

    Raises:
        MalformedRequestError: neither of these values.
    """
    query = parse_query(raw_query)
    word = query.get("acks", "all").lower()
    acks = _ACKS.get(word)
    if acks is None:
        raise MalformedRequestError(f"Invalid parameter 'acks' got '{word}': use 0, 1 or all")
    timeout_ms = integer_param(query, "timeout_ms", 0, least=1)
    return ProduceOptions(acks, timeout_ms or None)


async def produce_to_topic(call: Call) -> web.Response:
    """Append records; the node picks each one's partition, unless it names one."""
    return await _produce(call, None)


async def produce_to_partition(call: Call) -> web.Response:
    """Append records, or one encoded batch, to a partition."""
    partition = partition_number(call)
    return await _produce(call, partition)


async def _produce(call: Call, partition: int | None) -> web.Response:
    content_type = metadata_type(call.header("Accept"))
    format_ = produce_format(call.header("Content-Type"))
    options = parse_options(call.raw_query)
    limits = call.ports.limits
    timeout_ms = min(
        options.timeout_ms or limits.produce_timeout_ms_default, limits.produce_timeout_ms_max
    )
    body = await call.body()
    if format_ is RecordFormat.BATCH:
        return await _produce_batch(call, partition, body, options.acks, timeout_ms)
    topic = call.names["topic"]
    records = _DECODERS[format_](body, records_max=limits.records_per_request_max)
    request = ProduceRequest(
        topic=topic,
        records=records,
        acks=options.acks,
        timeout_ms=timeout_ms,
        partition=partition,
        idempotency=_idempotency(call, topic, format_, partition, body),
    )
    if records.partitions is not None:
        request = _resolve_partitions(request, records.partitions)
    receipts = await call.ports.records.produce(request)
    return produce_answer(receipts, content_type)


def _resolve_partitions(request: ProduceRequest, partitions: list[int | None]) -> ProduceRequest:
    """A record's own partition wins over the path's; when all agree, the request names it once."""
    if request.partition is not None:
        partitions = [request.partition if p is None else p for p in partitions]
    distinct = set(partitions)
    records = replace(request.records, partitions=None if len(distinct) == 1 else partitions)
    return replace(
        request,
        records=records,
        partition=next(iter(distinct)) if len(distinct) == 1 else None,
    )


def _idempotency(
    call: Call, topic: str, format_: RecordFormat, partition: int | None, body: bytes
) -> IdempotencyKey | None:
    key = call.request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not 1 <= len(key) <= _KEY_CHARS_MAX or not all("!" <= c <= "~" for c in key):
        raise MalformedRequestError(
            f"Idempotency-Key must be 1 to {_KEY_CHARS_MAX} visible ASCII characters"
        )
    # The same bytes mean something else in another format or for another partition.
    body_hash = blake2b(f"{format_}:{partition}:".encode(), digest_size=8)
    body_hash.update(body)
    return IdempotencyKey(
        key_hash=blake2b(f"{topic}\0{key}".encode(), digest_size=16).digest(),
        body_hash=body_hash.digest(),
    )


async def _produce_batch(
    call: Call, partition: int | None, body: bytes, acks: Acks, timeout_ms: int
) -> web.Response:
    if partition is None:
        raise UnsupportedMediaTypeError(
            "an encoded batch goes to one partition: POST it to /topics/{topic}/partitions/{partition}/records"
        )
    if call.request.headers.get("Idempotency-Key") is not None:
        raise MalformedRequestError(
            "an encoded batch names its producer in its header; send it without Idempotency-Key"
        )
    receipt = await call.ports.records.produce_batch(
        call.names["topic"], partition, body, acks=acks, timeout_ms=timeout_ms
    )
    return json_answer(
        {
            "partition": receipt.partition,
            "base_offset": receipt.base_offset,
            "last_offset": receipt.last_offset,
            "is_duplicate": receipt.is_duplicate,
        }
    )


def produce_answer(receipts: Sequence[Receipt], content_type: str) -> web.Response:
    """The answer to a produce request: an item a record, in request order.

    Raises:
        MilenaError: every record failed, and all for the same kind of cause.
    """
    if isinstance(receipts, Receipts) and isinstance(receipts.offsets, range):
        body = _run_body(receipts.partitions[0], receipts.offsets)
        return bytes_answer(body, content_type)
    items, errors = _columns(receipts) if isinstance(receipts, Receipts) else _rows(receipts)
    if len(errors) == len(items) and len({row_of(error) for error in errors}) == 1:
        raise errors[0]
    return json_answer(
        {"offsets": items, "key_schema_id": None, "value_schema_id": None},
        content_type=content_type,
    )


def _run_body(partition: int, offsets: range) -> bytes:
    """Consecutive offsets of one partition: one dump of the numbers, and commas become what stands between them."""
    start = b'{"partition":%d,"offset":' % partition
    numbers = orjson.dumps([*offsets])[1:-1].replace(b",", _ITEM_END + b"," + start)
    return b"".join((_HEAD, start, numbers, _ITEM_END, _TAIL))


def _columns(receipts: Receipts) -> tuple[list[dict[str, object]], list[MilenaError]]:
    if receipts.errors:
        return _rows(list(receipts))
    return [
        {"partition": partition, "offset": offset, "error_code": None, "error": None}
        for partition, offset in zip(receipts.partitions, receipts.offsets, strict=True)
    ], []


def _rows(receipts: Sequence[Receipt]) -> tuple[list[dict[str, object]], list[MilenaError]]:
    items = [receipt_json(receipt) for receipt in receipts]
    return items, [receipt.error for receipt in receipts if receipt.error is not None]


def receipt_json(receipt: Receipt) -> dict[str, object]:
    """One record's item; on failure with the error under both names that clients look for."""
    item: dict[str, object] = {
        "partition": receipt.partition,
        "offset": receipt.offset,
        "error_code": None,
        "error": None,
    }
    if receipt.error is not None:
        item["error_code"] = row_of(receipt.error).error_code
        item["error"] = item["message"] = printable(receipt.error.message)
        item["offset"] = None
    return item
