"""v2 produce: read the options in a request's head, decode the records of its body, and pass them to the node.

The handler (``http_api.v2.produce``) uses this module, and the quick lane (``http_api.quick.lane``) for small requests
with a known head.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from http_api.access.callers import Caller
from http_api.describing.params import ChoiceParam, IntegerParam
from http_api.describing.schemas import parse_query
from http_api.formats import binary_v2, json_v2, lines, text_v2
from http_api.formats.envelope import ItemsDecoder, decode_envelope
from http_api.ports.node import ApiLimits, Ports
from http_api.protocol.media import RecordFormat, metadata_type, names_record_format, produce_format
from http_api.records.conditions import ExpectedEnd
from http_api.records.idempotency_key import idempotency_of
from http_api.records.receipts import encode_receipts
from http_api.serving.lookup import partition_number
from milena.model.pending import Pending
from milena.model.requests import (
    Acks,
    IdempotencyKey,
    ProduceReceipt,
    ProduceRequest,
    ProducerTransaction,
    Records,
)
from milena.model.turns import Steps, at_once

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
ASYNC = ChoiceParam(
    name="async",
    description="`true`: answer 204 at once, without receipts; records are written as with `acks=0`",
    words={"false": False, "true": True},
    hint="true or false",
)
RECORD_FORMAT = "Milena-Record-Format"
_NO_HEADERS: Mapping[str, str] = {}

Decoder = Callable[..., Steps[Records]]
ITEM_DECODERS: Mapping[RecordFormat, ItemsDecoder] = {
    RecordFormat.JSON: json_v2.encode_items,
    RecordFormat.BINARY: binary_v2.decode_items,
    RecordFormat.TEXT: text_v2.decode_items,
}
"""The formats of keys and values in a JSON envelope."""
DECODERS: dict[RecordFormat, Decoder] = {
    **{format_: partial(decode_envelope, decode) for format_, decode in ITEM_DECODERS.items()},
    RecordFormat.TEXT_LINES: lines.decode_text_steps,
    RecordFormat.JSON_LINES: lines.decode_json_steps,
}


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """Options of the query string."""

    acks: Acks
    timeout_ms: int | None
    """How long the request may take; None: the server's default."""
    is_async: bool = False
    """Whether the client wants a response before the records are written, without receipts."""


@lru_cache(maxsize=512)
def parse_options(raw_query: str) -> ProduceOptions:
    """Return the options ``?acks=0|1|all&timeout_ms=&async=``. Cached, because a producer repeats them.

    Raises:
        MalformedRequestError: a value is not valid.
    """
    query = parse_query(raw_query)
    acks, is_async = ACKS.read(query), ASYNC.read(query)
    return ProduceOptions(Acks.NONE if is_async else acks, TIMEOUT_MS.read(query), is_async)


class ProduceHead:
    """The path and the options of a request, which its head determines."""

    def __init__(
        self,
        ports: Ports,
        topic: str,
        partition: int | None,
        *,
        format: RecordFormat,  # noqa: A002  (what it is called everywhere)
        options: ProduceOptions,
        content_type: str,
        headers: Mapping[str, str] = _NO_HEADERS,
        may_create: bool,
    ) -> None:
        limits = ports.limits
        self.topic = topic
        self.partition = partition
        """The partition for records that name no partition; None: the node chooses."""
        self.format = format
        self.acks = options.acks
        self.is_async = options.is_async
        self.timeout_ms = limits.produce_wait_ms(options.timeout_ms)
        self.content_type = content_type
        """The media type of the response."""
        self.headers = headers
        """Headers of a successful response."""
        self.may_create = may_create
        """Whether a missing topic may be created for this caller."""
        self._ports = ports
        self._records_max = limits.records_per_request_max

    def decode(self, body: bytes) -> Steps[Records]:
        """Return the records of a body that is not an encoded batch."""
        steps: Steps[Records] = DECODERS[self.format](body, records_max=self._records_max)
        return steps

    def append(
        self,
        records: Records,
        idempotency: IdempotencyKey | None = None,
        expected_end: ExpectedEnd | None = None,
        transaction: ProducerTransaction | None = None,
    ) -> Pending[Sequence[ProduceReceipt]]:
        """Pass records to the node."""
        request = ProduceRequest(
            topic=self.topic,
            records=records,
            acks=self.acks,
            timeout_ms=self.timeout_ms,
            partition=self.partition,
            idempotency=idempotency,
            expected_end=None if expected_end is None else expected_end.offset,
            topic_tag="" if expected_end is None else expected_end.topic_tag,
            transaction=transaction,
            may_create=self.may_create,
        )
        if records.partitions is not None:
            request = _resolve_partitions(request, records.partitions)
        return self._ports.produce.produce(request)

    def idempotency(
        self, key: str | None, body: bytes, transaction: ProducerTransaction | None = None
    ) -> IdempotencyKey | None:
        """Return the hashes of the request's idempotency key and body; None without a key.

        Raises:
            MalformedRequestError: the key is not valid.
        """
        if key is None:
            return None
        scope = self.topic
        if transaction is not None:
            # Topic names have no colon, so this scope is unique. The same key in another transaction counts as another.
            scope += f":{transaction.producer_id}:{transaction.producer_epoch}"
        # A retry must also have the same format and partition, or the same bytes would mean other records.
        return idempotency_of(key, body, scope=scope, meaning=f"{self.format}:{self.partition}:")

    def start(self, body: bytes, varying: str | None) -> Pending[Sequence[ProduceReceipt]]:
        """Decode and append a small body at once."""
        records = at_once(self.decode(body))
        return self.append(records, self.idempotency(varying, body))

    def encode(self, receipts: Sequence[ProduceReceipt]) -> bytes:
        """Return the body of the response."""
        return encode_receipts(receipts)

    def headers_of(self, receipts: Sequence[ProduceReceipt]) -> Mapping[str, str]:
        """Return the headers of a successful response."""
        del receipts
        return self.headers


def read_head(
    ports: Ports,
    topic: str,
    partition: int | None,
    *,
    may_create: bool,
    raw_query: str,
    content_type: str,
    accept: str,
) -> ProduceHead:
    """Return the head with its options.

    Raises:
        MilenaError: the head is invalid.
    """
    answer_type = metadata_type(accept)
    format_ = produce_format(content_type)
    # Proxies of other makers read this type in different ways. So only its clients get a header that names the format.
    is_told = not names_record_format(content_type)
    return ProduceHead(
        ports,
        topic,
        partition,
        format=format_,
        options=parse_options(raw_query),
        content_type=answer_type,
        headers={RECORD_FORMAT: format_.value} if is_told else _NO_HEADERS,
        may_create=may_create,
    )


def prepare_to_produce(
    ports: Ports,
    caller: Caller,
    names: Mapping[str, str],
    raw_query: str,
    headers: Mapping[str, str],
) -> ProduceHead | None:
    """Return a handler for the quick lane; None for an encoded batch, or if the client wants no receipts.

    Raises:
        MilenaError: the head is invalid.
    """
    head = read_head(
        ports,
        names["topic"],
        partition_number(names) if "partition" in names else None,
        raw_query=raw_query,
        content_type=headers.get("content-type", ""),
        accept=headers.get("accept", ""),
        may_create=caller.may_create(names["topic"]),
    )
    return None if head.format not in DECODERS or head.acks is Acks.NONE else head


def _resolve_partitions(request: ProduceRequest, partitions: list[int | None]) -> ProduceRequest:
    """Apply the path's partition to records that name none; if all have the same one, set it for the request."""
    if request.partition is not None:
        partitions = [request.partition if p is None else p for p in partitions]
    distinct = set(partitions)
    records = replace(request.records, partitions=None if len(distinct) == 1 else partitions)
    return replace(
        request,
        records=records,
        partition=next(iter(distinct)) if len(distinct) == 1 else None,
    )
