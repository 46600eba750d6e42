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
from http_api.params import ChoiceParam, IntegerParam, Param, ParamPlace
from http_api.ports import ApiLimits
from http_api.quick.plain_answer import PlainAnswer
from http_api.schemas import parse_query
from http_api.shapes.blocks import text
from milena.model.errors import MalformedRequestError, MilenaError, UnsupportedMediaTypeError
from milena.model.requests import Acks, IdempotencyKey, ProduceRequest, Receipt, Receipts, Records
from milena.model.turns import LARGE_BYTES, Steps

_KEY_CHARS_MAX = 255

ACKS = ChoiceParam(
    name="acks",
    description=(
        "when to answer: `all` (or -1), once committed on every in-sync replica; 1, once the leader has stored it; "
        "0, before the append"
    ),
    words={"all": Acks.ALL, "1": Acks.LEADER, "0": Acks.NONE, "-1": Acks.ALL},
    hint="0, 1 or all",
)
TIMEOUT_MS = IntegerParam(
    name="timeout_ms",
    description=(
        f"how long to wait for the acknowledgement; absent: {ApiLimits().produce_timeout_ms_default}, longer than "
        f"{ApiLimits().produce_timeout_ms_max} is taken as that, unless the node is configured otherwise"
    ),
    least=1,
    default=None,
)
IDEMPOTENCY_KEY = Param(
    name="Idempotency-Key",
    place=ParamPlace.HEADER,
    description=(
        "a repeat with the same body gets the first answer and writes nothing, on any node; visible ASCII characters"
    ),
    schema=text(minLength=1, maxLength=_KEY_CHARS_MAX, pattern="^[!-~]+$"),
    example="payment-17",
)

_HEAD = b'{"offsets":['
_TAIL = b'],"key_schema_id":null,"value_schema_id":null}'
_ITEM_END = b',"error_code":null,"error":null}'

Decoder = Callable[..., Steps[Records]]
DECODERS: dict[RecordFormat, Decoder] = {
    RecordFormat.JSON: json_v2.decode_steps,
    RecordFormat.BINARY: binary_v2.decode_steps,
}


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """What the query string asks for."""

    acks: Acks
    timeout_ms: int | None
    """None: the server's default."""

    def wait_ms(self, limits: ApiLimits) -> int:
        """The wait that is granted."""
        return min(
            self.timeout_ms or limits.produce_timeout_ms_default, limits.produce_timeout_ms_max
        )


@lru_cache(maxsize=512)
def parse_options(raw_query: str) -> ProduceOptions:
    """``?acks=0|1|all&timeout_ms=``; cached, because a producer sends the same with each request.

    Raises:
        MalformedRequestError: neither of these values.
    """
    query = parse_query(raw_query)
    return ProduceOptions(ACKS.read(query), TIMEOUT_MS.read(query))


async def produce_to_topic(call: Call) -> web.StreamResponse:
    """Append records; the node picks each one's partition, unless it names one."""
    return await _produce(call, None)


async def produce_to_partition(call: Call) -> web.StreamResponse:
    """Append records, or one encoded batch, to a partition."""
    partition = partition_number(call)
    return await _produce(call, partition)


async def _produce(call: Call, partition: int | None) -> web.StreamResponse:
    content_type = metadata_type(call.header("Accept"))
    format_ = produce_format(call.header("Content-Type"))
    options = parse_options(call.raw_query)
    limits = call.ports.limits
    timeout_ms = options.wait_ms(limits)
    body = await call.body()
    if format_ is RecordFormat.BATCH:
        return await _produce_batch(call, partition, body, options.acks, timeout_ms)
    steps = DECODERS[format_](body, records_max=limits.records_per_request_max)
    size = len(body)
    job = _Job(
        partition=partition,
        acks=options.acks,
        timeout_ms=timeout_ms,
        idempotency=_idempotency(call, call.names["topic"], format_, partition, body),
    )
    # The steps let go of it when they have come to their end: a large body need not stay longer.
    del body
    if size < LARGE_BYTES:
        receipts = await _append(call, job, steps, size)
    else:
        async with call.shared.turns.room(size, wait_ms=timeout_ms):
            receipts = await _append(call, job, steps, size)
    return produce_answer(receipts, content_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What a request says besides its records."""

    partition: int | None
    acks: Acks
    timeout_ms: int
    idempotency: IdempotencyKey | None


async def _append(call: Call, job: _Job, steps: Steps[Records], size: int) -> Sequence[Receipt]:
    records = await call.shared.turns.run(steps, size)
    request = ProduceRequest(
        topic=call.names["topic"],
        records=records,
        acks=job.acks,
        timeout_ms=job.timeout_ms,
        partition=job.partition,
        idempotency=job.idempotency,
    )
    if records.partitions is not None:
        request = resolve_partitions(request, records.partitions)
    return await call.ports.produce.produce(request)


def resolve_partitions(request: ProduceRequest, partitions: list[int | None]) -> ProduceRequest:
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
    receipt = await call.ports.produce.produce_batch(
        call.names["topic"], partition, body, acks=acks, timeout_ms=timeout_ms
    )
    return json_answer(
        {
            "partition": receipt.partition,
            "base_offset": receipt.base_offset,
            "last_offset": receipt.last_offset,
            "is_duplicate": receipt.is_duplicate,
            "leader_epoch": receipt.leader_epoch,
        }
    )


def produce_answer(receipts: Sequence[Receipt], content_type: str) -> web.StreamResponse:
    """The answer to a produce request: an item a record, in request order.

    Raises:
        MilenaError: every record failed, and all for the same kind of cause.
    """
    if isinstance(receipts, Receipts) and isinstance(receipts.offsets, range):
        body = encode_offsets(receipts.partitions[0], receipts.offsets)
        return PlainAnswer(body, content_type)
    items, errors = _columns(receipts) if isinstance(receipts, Receipts) else _rows(receipts)
    if len(errors) == len(items) and len({row_of(error) for error in errors}) == 1:
        raise errors[0]
    return bytes_answer(_encode_items(items), content_type)


def _encode_items(items: Sequence[dict[str, object]]) -> bytes:
    return orjson.dumps({"offsets": items, "key_schema_id": None, "value_schema_id": None})


def encode_offsets(partition: int, offsets: Sequence[int | None]) -> bytes:
    """Receipts of records that all went to one partition."""
    if isinstance(offsets, range):
        return _run_body(partition, offsets)
    receipts = Receipts(partitions=[partition] * len(offsets), offsets=offsets)
    return _encode_items(_columns(receipts)[0])


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
        "partition": None if receipt.partition < 0 else receipt.partition,
        "offset": receipt.offset,
        "error_code": None,
        "error": None,
    }
    if receipt.error is not None:
        item["error_code"] = row_of(receipt.error).error_code
        item["error"] = item["message"] = printable(receipt.error.message)
        item["offset"] = None
    return item
