"""Native endpoint: a complete transaction in one request.

Requests are passed to this module by its handler, or by the quick lane (``http_api.quick.lane``) if the head of the
request is known already and the body is small. ``sessions`` uses some of its functions too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from http_api.access.callers import Caller
from http_api.describing.schemas import Fields, parse_query
from http_api.formats import exact_json
from http_api.formats.envelope import decode_parsed
from http_api.ports.node import Ports
from http_api.protocol.answers import bytes_answer
from http_api.protocol.errors import InvalidFieldError
from http_api.protocol.media import JSON_TYPE, RecordFormat, produce_format
from http_api.records.idempotency_key import IDEMPOTENCY_KEY, idempotency_of
from http_api.records.produce_head import ITEM_DECODERS, TIMEOUT_MS
from http_api.records.receipts import encode_items
from http_api.records.topic_tags import named_topic_id
from http_api.serving.call import Call
from http_api.shapes import requests as shapes
from milena.model.access import Operation, ResourceType
from milena.model.errors import ForbiddenError, UnsupportedMediaTypeError
from milena.model.pending import Pending, in_a_task
from milena.model.requests import (
    CommittedNext,
    GroupOffsets,
    TransactionReceipt,
    TransactionRequest,
    TransactionWrite,
)
from milena.model.turns import LARGE_BYTES, Steps, at_once

if TYPE_CHECKING:
    import asyncio

_Authorize = Callable[[Operation, ResourceType, Iterable[str]], None]
"""Requires that the caller may perform the operation on all of these resources, or raises ``ForbiddenError``."""


async def transact(call: Call) -> web.Response:
    """Append records to several partitions and commit offsets, all of it or nothing."""
    head = TransactHead(
        call.ports,
        format_=_format(call.header("Content-Type")),
        timeout_ms=call.ports.limits.produce_wait_ms(TIMEOUT_MS.read(call.query())),
        may_create=call.rights.may_create,
    )
    body = await call.body.whole()
    key = call.request.headers.get(IDEMPOTENCY_KEY.name)
    steps, size = head.decode(body, key), len(body)
    # ``steps`` still refers to the body, and releases it after decoding. Drop this reference, so that a large body does
    # not stay in memory until the response.
    del body
    turns = call.shared.turns
    async with nullcontext() if size < LARGE_BYTES else turns.room(size, wait_ms=head.timeout_ms):
        request = await turns.run(steps, size)
        authorize(call.rights.authorize, *_asked(request))
        call.check_groups(commit.group for commit in request.offsets)
        receipt = await call.ports.transactions.transact(request)
    return bytes_answer(head.encode(receipt), head.content_type)


def prepare_to_transact(
    ports: Ports,
    caller: Caller,
    names: Mapping[str, str],
    raw_query: str,
    headers: Mapping[str, str],
) -> "TransactHead":
    """Return a handler for the quick lane, for requests with this head and a small body.

    Raises:
        MilenaError: the head is invalid.
    """
    del names
    return TransactHead(
        ports,
        format_=_format(headers.get("content-type", "")),
        timeout_ms=ports.limits.produce_wait_ms(TIMEOUT_MS.read(parse_query(raw_query))),
        may_create=lambda topic: not caller.is_enforced or caller.may_create(topic),
        ask=_asking(caller),
    )


class TransactHead:
    """The options of a request that its head determines."""

    content_type = JSON_TYPE

    def __init__(
        self,
        ports: Ports,
        *,
        format_: RecordFormat,
        timeout_ms: int,
        may_create: Callable[[str], bool],
        ask: _Authorize | None = None,
    ) -> None:
        """Keep the options. ``ask`` checks rights for the quick lane; None: the handler checks them itself."""
        self.format = format_
        self.timeout_ms = timeout_ms
        self._transactions = ports.transactions
        self._metadata = ports.metadata
        self._records_max = ports.limits.records_per_request_max
        self._may_create = may_create
        self._ask = ask
        self._tasks: set[asyncio.Task[Any]] = set()

    def decode(self, body: bytes, key: str | None) -> Steps[TransactionRequest]:
        """Decode a body in steps; ``key`` is the idempotency key, or None.

        Raises:
            MalformedRequestError, InvalidFieldError, RequestTooLargeError: the body is invalid or too large.
        """
        # Keys of other writes have the topic's name as scope. This scope is no valid topic name, so the same key in a
        # transaction and in another write counts as two keys.
        idempotency = idempotency_of(
            key, body, scope="\0transaction", meaning=f"{self.format}:transaction:"
        )
        fields = Fields(exact_json.loads(body), "the body", shapes.TRANSACTION.fields)
        yield
        writes = fields.items("writes")
        offsets = tuple(group_offsets(fields))
        _check_counts(len(writes), offsets)
        if key is not None and not writes:
            raise InvalidFieldError(
                "an Idempotency-Key is kept with the records that came under it, and 'writes' is empty: offsets alone "
                "are the same when they are committed twice, so send them without"
            )
        return TransactionRequest(
            writes=(yield from _writes(writes, self.format, self._records_max, self._may_create)),
            offsets=offsets,
            timeout_ms=self.timeout_ms,
            idempotency=idempotency,
        )

    def start(self, body: bytes, varying: str | None) -> Pending[TransactionReceipt]:
        """Pass a small body to the node."""
        request = at_once(self.decode(body, varying))
        assert self._ask is not None, "made for the lane"
        authorize(self._ask, *_asked(request))
        groups = self._metadata.image.groups
        if any(commit.group not in groups for commit in request.offsets):
            # This error sends the request to the handler, which also checks the name of a new group, and whether the
            # caller may create one more.
            raise ForbiddenError("a group that is to be made")
        return in_a_task(self._transactions.transact(request), self._tasks)

    def headers_of(self, receipt: TransactionReceipt) -> Mapping[str, str]:
        """Return no headers: the body says everything."""
        del receipt
        return {}

    def encode(self, receipt: TransactionReceipt) -> bytes:
        """Return the body of the response."""
        return orjson.dumps(
            {
                "committed": True,
                "visible": receipt.is_visible,
                "is_duplicate": receipt.is_duplicate,
                "writes": [
                    {"offsets": orjson.Fragment(encode_items(records))}
                    for records in receipt.receipts
                ],
            }
        )


def _asked(request: TransactionRequest) -> tuple[Iterable[str], Iterable[GroupOffsets]]:
    return (write.topic for write in request.writes), request.offsets


def _asking(caller: Caller) -> _Authorize:
    """Return a check of rights for the quick lane. If it fails, the request goes to the handler, which refuses it."""

    def ask(operation: Operation, kind: ResourceType, names: Iterable[str], /) -> None:
        if not all(caller.may(operation, kind, name) for name in names):
            raise ForbiddenError("something in the body")

    return ask


def authorize(ask: _Authorize, topics: Iterable[str], offsets: Iterable[GroupOffsets]) -> None:
    """Require that the caller may write to the topics, and commit the offsets.

    Raises:
        ForbiddenError: the caller may not.
    """
    ask(Operation.WRITE, ResourceType.TOPIC, topics)
    for group in offsets:
        ask(Operation.READ, ResourceType.GROUP, [group.group])
        ask(Operation.READ, ResourceType.TOPIC, {row.topic for row in group.offsets})


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
    records_max: int,
    may_create: Callable[[str], bool],
) -> Steps[tuple[TransactionWrite, ...]]:
    writes: list[TransactionWrite] = []
    for number, item in enumerate(items):
        fields = Fields(item, f"writes[{number}]", shapes.TRANSACTION_WRITE.fields)
        topic = fields.required_text("topic")
        partition = fields.integer("partition", least=0)
        envelope = {"records": fields.required_items("records")}
        decoder = ITEM_DECODERS[format_]
        records = yield from decode_parsed(envelope, decoder, records_max=records_max)
        records_max -= len(records.values)
        writes.append(
            TransactionWrite(
                topic=topic, partition=partition, records=records, may_create=may_create(topic)
            )
        )
    return tuple(writes)


def _format(content_type: str) -> RecordFormat:
    """Return the format of keys and values in the body's JSON.

    Raises:
        UnsupportedMediaTypeError: the body has a type that transactions do not support.
    """
    format_ = produce_format(content_type)
    if format_ not in ITEM_DECODERS:
        raise UnsupportedMediaTypeError(
            "a transaction is JSON: send application/json, or say with one of kafka's types, as "
            "application/vnd.kafka.binary.v2+json, how keys and values are written in it"
        )
    return format_


def group_offsets(fields: Fields) -> Iterator[GroupOffsets]:
    """Yield the offsets to commit, one item per group and member, in the order of their first rows in the body."""
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
            topic_id=named_topic_id(row),
        )
        gathered.setdefault(member, {})[found.topic, found.partition] = found
    for (group, member_id, member_epoch), rows in gathered.items():
        yield GroupOffsets(
            group=group,
            member_id=member_id,
            member_epoch=member_epoch,
            offsets=tuple(rows.values()),
        )
