"""Native: transactions, whole ones in one request and sessions that are written step by step."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import blake2b

import orjson
from aiohttp import web

from http_api.answers import json_answer
from http_api.call import Call
from http_api.describing.params import ChoiceParam, IntegerParam
from http_api.describing.schemas import Fields, integer_text, parse_json
from http_api.errors import InvalidFieldError
from http_api.formats import binary_v2, json_v2, text_v2
from http_api.formats.envelope import ItemsDecoder, decode_parsed
from http_api.media import RecordFormat, produce_format
from http_api.native.pages import PARTITIONS, RowPage, matching, sort_param
from http_api.shapes import requests as shapes
from http_api.v2.produce import idempotency_key
from http_api.v2.produce_head import TIMEOUT_MS
from http_api.v2.receipts import encode_items
from http_api.v2.transaction_header import (
    authorize_transaction,
    transaction_of,
    transaction_text,
)
from milena.model.access import Operation, ResourceType
from milena.model.errors import UnsupportedMediaTypeError
from milena.model.requests import (
    TRANSACTION_TIMEOUT_MS_DEFAULT,
    TRANSACTION_TIMEOUT_MS_MAX,
    CommittedNext,
    GroupOffsets,
    IdempotencyKey,
    OpenTransaction,
    ProducerTransaction,
    TransactionCommit,
    TransactionRequest,
    TransactionWrite,
    WrittenExtent,
)
from milena.model.turns import LARGE_BYTES, Steps

RESERVED_PREFIX = "milena."
"""Of producers' names; theirs are the nodes'."""

OLDER_THAN_MS = IntegerParam(
    name="older_than_ms",
    description="only those whose first record is this old",
    least=0,
    default=0,
)
UNTIL = ChoiceParam(
    name="until",
    description=(
        "when to answer: `visible`, once readers see it in every partition; `committed`, once it is decided, which is "
        "sooner: readers see it soon, and certainly"
    ),
    words={"visible": True, "committed": False},
    hint="visible or committed",
)


async def transact(call: Call) -> web.Response:
    """Append records to several partitions and commit offsets, all of it or nothing."""
    format_ = _format(call)
    timeout_ms = _timeout_ms(call)
    body = await call.body.whole()
    key = _idempotency(call, format_, body)
    steps, size = _request(call, body, format_, timeout_ms, key), len(body)
    # The steps let go of it when they have come to their end.
    del body
    turns = call.shared.turns
    async with nullcontext() if size < LARGE_BYTES else turns.room(size, wait_ms=timeout_ms):
        request = await turns.run(steps, size)
        _authorize(call, (write.topic for write in request.writes), request.offsets)
        receipt = await call.ports.transactions.transact(request)
    return json_answer(
        {
            "committed": True,
            "visible": receipt.is_visible,
            "is_duplicate": receipt.is_duplicate,
            "writes": [
                {"offsets": orjson.Fragment(encode_items(records))} for records in receipt.receipts
            ],
        }
    )


def _authorize(call: Call, topics: Iterable[str], offsets: Iterable[GroupOffsets]) -> None:
    """Refuse unless the caller may write to the topics, and commit the offsets.

    Raises:
        ForbiddenError: it may not.
    """
    call.rights.authorize(Operation.WRITE, ResourceType.TOPIC, topics)
    for group in offsets:
        call.rights.authorize(Operation.READ, ResourceType.GROUP, [group.group])
        call.rights.authorize(
            Operation.READ, ResourceType.TOPIC, {row.topic for row in group.offsets}
        )


def _timeout_ms(call: Call) -> int:
    limits = call.ports.limits
    return min(
        TIMEOUT_MS.read(call.query()) or limits.produce_timeout_ms_default,
        limits.produce_timeout_ms_max,
    )


def _idempotency(call: Call, format_: RecordFormat, body: bytes) -> IdempotencyKey | None:
    key = idempotency_key(call)
    if key is None:
        return None
    # No topic has this name, so that the keys of other writes are others.
    body_hash = blake2b(f"{format_}:transaction:".encode(), digest_size=8)
    body_hash.update(body)
    return IdempotencyKey(
        key_hash=blake2b(f"\0transaction\0{key}".encode(), digest_size=16).digest(),
        body_hash=body_hash.digest(),
    )


def _request(
    call: Call, body: bytes, format_: RecordFormat, timeout_ms: int, key: IdempotencyKey | None
) -> Steps[TransactionRequest]:
    """What a body asks for, in steps.

    Raises:
        MalformedRequestError, InvalidFieldError, RequestTooLargeError: as of a produce request.
    """
    fields = Fields(parse_json(body), "the body", shapes.TRANSACTION.fields)
    yield
    writes = fields.items("writes")
    offsets = tuple(_offsets(fields))
    _check_counts(len(writes), offsets)
    if key is not None and not writes:
        raise InvalidFieldError(
            "an Idempotency-Key is kept with the records that came under it, and 'writes' is empty: offsets alone "
            "are the same when they are committed twice, so send them without"
        )
    records_max = call.ports.limits.records_per_request_max
    return TransactionRequest(
        writes=(yield from _writes(writes, format_, body, records_max, call.rights.may_create)),
        offsets=offsets,
        timeout_ms=timeout_ms,
        idempotency=key,
    )


def _check_counts(write_count: int, offsets: tuple[GroupOffsets, ...]) -> None:
    offset_count = sum(len(group.offsets) for group in offsets)
    if not write_count and not offset_count:
        raise InvalidFieldError("a transaction needs 'writes' or 'offsets'; both are empty")
    if write_count > shapes.WRITES_MAX or offset_count > shapes.TRANSACTION_OFFSETS_MAX:
        raise InvalidFieldError(
            f"{write_count} writes and {offset_count} offsets are too many: send at most {shapes.WRITES_MAX} and "
            f"{shapes.TRANSACTION_OFFSETS_MAX}"
        )


def _writes(
    items: list[object],
    format_: RecordFormat,
    body: bytes,
    records_max: int,
    may_create: Callable[[str], bool],
) -> Steps[tuple[TransactionWrite, ...]]:
    exact = json_v2.decoders_of_writes(body)
    writes: list[TransactionWrite] = []
    for number, item in enumerate(items):
        fields = Fields(item, f"writes[{number}]", shapes.TRANSACTION_WRITE.fields)
        topic = fields.required_text("topic")
        partition = fields.integer("partition", least=0)
        envelope = {"records": fields.required_items("records")}
        decoder = _decoder(format_, exact(number))
        records = yield from decode_parsed(envelope, decoder, records_max=records_max)
        records_max -= len(records.values)
        writes.append(
            TransactionWrite(
                topic=topic, partition=partition, records=records, may_create=may_create(topic)
            )
        )
    return tuple(writes)


def _format(call: Call) -> RecordFormat:
    """How keys and values are written in the body's JSON.

    Raises:
        UnsupportedMediaTypeError: the body is said to be something else.
    """
    format_ = produce_format(call.header("Content-Type"))
    if format_ not in (RecordFormat.JSON, RecordFormat.BINARY, RecordFormat.TEXT):
        raise UnsupportedMediaTypeError(
            "a transaction is JSON: send application/json, or say with one of kafka's types, as "
            "application/vnd.kafka.binary.v2+json, how keys and values are written in it"
        )
    return format_


def _decoder(format_: RecordFormat, exact: ItemsDecoder) -> ItemsDecoder:
    if format_ is RecordFormat.JSON:
        return exact
    return binary_v2.decode_items if format_ is RecordFormat.BINARY else text_v2.decode_items


def _offsets(fields: Fields) -> Iterator[GroupOffsets]:
    """Rows of one group and member together, in the order in which they come first."""
    gathered: dict[tuple[str, str | None, int], dict[tuple[str, int], CommittedNext]] = {}
    for row in fields.objects("offsets", shapes.TRANSACTION_OFFSET.fields):
        member_id = row.text("member_id")
        member_epoch = row.integer("member_epoch", least=-1)
        if (member_id is None) != (member_epoch is None or member_epoch < 0):
            raise InvalidFieldError(
                "'member_id' and 'member_epoch' of an offset belong together: a member commits under its epoch, and "
                "a group without members needs neither"
            )
        member = (
            row.required_text("group"),
            member_id,
            -1 if member_epoch is None else member_epoch,
        )
        found = CommittedNext(
            topic=row.required_text("topic"),
            partition=row.required_integer("partition", least=0),
            next_offset=row.required_integer("next_offset", least=0),
            metadata=row.text("metadata") or "",
        )
        gathered.setdefault(member, {})[found.topic, found.partition] = found
    for (group, member_id, member_epoch), rows in gathered.items():
        yield GroupOffsets(
            group=group,
            member_id=member_id,
            member_epoch=member_epoch,
            offsets=tuple(rows.values()),
        )


# --- sessions ---


async def begin(call: Call) -> web.Response:
    """A producer's next transaction; what its former holder left open is aborted."""
    fields = Fields(await call.json_body(), "the body", shapes.BEGIN_TRANSACTION.fields)
    name = fields.required_text("transactional_id")
    check_producer_name("transactional_id", name)
    timeout_ms = fields.integer("timeout_ms", least=1) or TRANSACTION_TIMEOUT_MS_DEFAULT
    if timeout_ms > TRANSACTION_TIMEOUT_MS_MAX:
        raise InvalidFieldError(
            f"'timeout_ms' is {timeout_ms}; a transaction is open for at most {TRANSACTION_TIMEOUT_MS_MAX}"
        )
    call.rights.authorize_producer(name)
    begun = await call.ports.transactions.begin(name, timeout_ms=timeout_ms)
    return json_answer(
        {
            "transactional_id": name,
            "producer_id": begun.producer_id,
            "producer_epoch": begun.producer_epoch,
            "timeout_ms": begun.timeout_ms,
            "transaction": transaction_text(begun),
        }
    )


def check_producer_name(field: str, name: str) -> None:
    """Refuse a name that no producer of a client may have.

    Raises:
        InvalidFieldError: the message says why.
    """
    if not (1 <= len(name) <= shapes.PRODUCER_NAME_CHARS_MAX and name.isprintable()):
        raise InvalidFieldError(
            f"'{field}' must be 1 to {shapes.PRODUCER_NAME_CHARS_MAX} printable characters"
        )
    if name.startswith(RESERVED_PREFIX):
        raise InvalidFieldError(
            f"'{field}' may not begin with '{RESERVED_PREFIX}': such names are the nodes' own"
        )


async def commit(call: Call) -> web.Response:
    """Let what was written and acknowledged take effect, and offsets with it."""
    transaction = _named(call)
    fields = Fields(await call.json_body(), "the body", shapes.COMMIT_TRANSACTION.fields)
    fields.required_items("writes")
    writes = tuple(
        WrittenExtent(
            topic=row.required_text("topic"),
            partition=row.required_integer("partition", least=0),
            end_offset=row.required_integer("end_offset", least=1),
            records=row.required_integer("records", least=1),
        )
        for row in fields.objects("writes", shapes.WRITTEN_EXTENT.fields)
    )
    if len({(write.topic, write.partition) for write in writes}) < len(writes):
        raise InvalidFieldError("'writes' names a partition twice: its greatest end offset counts")
    offsets = tuple(_offsets(fields))
    if len(writes) + sum(len(group.offsets) for group in offsets) > shapes.TRANSACTION_OFFSETS_MAX:
        raise InvalidFieldError(
            f"a transaction has at most {shapes.TRANSACTION_OFFSETS_MAX} partitions and offsets"
        )
    authorize_transaction(call, transaction)
    _authorize(call, (write.topic for write in writes), offsets)
    ended = await call.ports.transactions.commit(
        TransactionCommit(
            transaction=transaction,
            writes=writes,
            offsets=offsets,
            timeout_ms=_timeout_ms(call),
            until_visible=UNTIL.read(call.query()),
        )
    )
    return json_answer(
        {"committed": True, "visible": ended.is_visible, "next_epoch": ended.next_epoch}
    )


async def abort(call: Call) -> web.Response:
    """Let nothing count of what was written."""
    Fields(await call.optional_json_body(), "the body", frozenset())
    transaction = _named(call)
    authorize_transaction(call, transaction)
    ended = await call.ports.transactions.abort(transaction, timeout_ms=_timeout_ms(call))
    return json_answer({"aborted": True, "next_epoch": ended.next_epoch})


def _named(call: Call) -> ProducerTransaction:
    return transaction_of(
        *(integer_text(name, call.names[name]) for name in ("producer_id", "producer_epoch"))
    )


@dataclass(frozen=True, slots=True)
class _Open:
    """A transaction, by what leaders hold of it."""

    parts: Sequence[OpenTransaction]

    @property
    def first(self) -> OpenTransaction:
        return self.parts[0]

    @property
    def name(self) -> str:
        return self.first.producer_name or ""

    @property
    def began_ms(self) -> int:
        return min(part.began_ms for part in self.parts)

    @property
    def deadline_ms(self) -> int:
        return self.began_ms + self.first.timeout_ms


_KEYS: Mapping[str, Callable[[_Open], int | str] | None] = {
    "began": None,
    "transaction": lambda row: row.name,
    "timeout": lambda row: row.first.timeout_ms,
    "deadline": lambda row: row.deadline_ms,
    "partitions": lambda row: len(row.parts),
}
SORT = sort_param(_KEYS, "their beginning")


async def list_transactions(call: Call) -> web.Response:
    """Transactions that leaders hold open, the oldest first."""
    query = call.query()
    age_ms, key, page = OLDER_THAN_MS.read(query), SORT.read(query), RowPage.of(query)
    partitions_max = PARTITIONS.read(query)
    grouped: dict[tuple[int, int], list[OpenTransaction]] = {}
    open_ones = await call.ports.transactions.open_transactions(older_than_ms=age_ms)
    is_seen = call.rights.seen(ResourceType.TOPIC)
    for found in open_ones:
        if not is_seen(found.topic):
            continue
        grouped.setdefault((found.producer_id, found.producer_epoch), []).append(found)
    rows = matching((_Open(parts) for parts in grouped.values()), lambda row: row.name, query)
    return json_answer(
        {
            "total": len(rows),
            "transactions": [_row(row, partitions_max) for row in page.cut(rows, key)],
        }
    )


def _row(row: _Open, partitions_max: int | None) -> dict[str, object]:
    first = row.first
    parts = sorted(row.parts, key=lambda part: (part.topic, part.partition))
    return {
        "producer_id": first.producer_id,
        "producer_epoch": first.producer_epoch,
        "transactional_id": first.producer_name,
        "state": "open" if any(part.state == "open" for part in parts) else "ending",
        "began_ms": row.began_ms,
        "timeout_ms": first.timeout_ms,
        "partition_count": len(parts),
        "partitions": [
            {
                "topic": part.topic,
                "partition": part.partition,
                "first_offset": part.first_offset,
                "records": part.records,
                "leader": part.leader,
            }
            for part in parts[:partitions_max]
        ],
    }
