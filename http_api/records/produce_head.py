"""v2: produce: what the head of a request says, and the records of a body on their way to the node.

A request comes here by its handler (``http_api.v2.produce``), or, where its head repeats and its body is small, past it
(``http_api.quick.lane``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from http_api.access.callers import Caller
from http_api.describing.params import ChoiceParam, IntegerParam
from http_api.describing.schemas import parse_query
from http_api.formats import binary_v2, json_v2, lines, text_v2
from http_api.ports.node import ApiLimits, Ports
from http_api.protocol.media import RecordFormat, metadata_type, names_record_format, produce_format
from http_api.records.conditions import ExpectedEnd
from http_api.records.idempotency_key import idempotency_of
from http_api.records.receipts import encode_receipts
from http_api.serving.lookup import parse_partition
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
DECODERS: dict[RecordFormat, Decoder] = {
    RecordFormat.JSON: json_v2.decode_steps,
    RecordFormat.BINARY: binary_v2.decode_steps,
    RecordFormat.TEXT: text_v2.decode_steps,
    RecordFormat.TEXT_LINES: lines.decode_text_steps,
    RecordFormat.JSON_LINES: lines.decode_json_steps,
}


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """Options of the query string."""

    acks: Acks
    timeout_ms: int | None
    """None: the server's default."""
    is_async: bool = False
    """Nobody wants receipts."""

    def wait_ms(self, limits: ApiLimits) -> int:
        """The wait that is granted."""
        return min(
            self.timeout_ms or limits.produce_timeout_ms_default, limits.produce_timeout_ms_max
        )


@lru_cache(maxsize=512)
def parse_options(raw_query: str) -> ProduceOptions:
    """``?acks=0|1|all&timeout_ms=&async=``; cached, because a producer sends the same with each request.

    Raises:
        MalformedRequestError: neither of these values.
    """
    query = parse_query(raw_query)
    acks, is_async = ACKS.read(query), ASYNC.read(query)
    return ProduceOptions(Acks.NONE if is_async else acks, TIMEOUT_MS.read(query), is_async)


class ProduceHead:
    """A request's path and options, known before its body."""

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
        """All records go there that name none."""
        self.format = format
        self.acks = options.acks
        self.is_async = options.is_async
        self.timeout_ms = options.wait_ms(limits)
        self.content_type = content_type
        """Of the answer."""
        self.headers = headers
        """Of the answer to what was taken."""
        self.may_create = may_create
        """A missing topic may be made for who sends it."""
        self._ports = ports
        self._records_max = limits.records_per_request_max

    def decode(self, body: bytes) -> Steps[Records]:
        """The records of a body, which is not an encoded batch."""
        steps: Steps[Records] = DECODERS[self.format](body, records_max=self._records_max)
        return steps

    def append(
        self,
        records: Records,
        idempotency: IdempotencyKey | None = None,
        expected_end: ExpectedEnd | None = None,
        transaction: ProducerTransaction | None = None,
    ) -> Pending[Sequence[ProduceReceipt]]:
        """Hand records to the node."""
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
        """What is kept of the request's key, if it has one.

        Raises:
            MalformedRequestError: it cannot be one.
        """
        if key is None:
            return None
        scope = self.topic
        if transaction is not None:
            # No topic has a colon in its name: a key of a transaction is of that one alone.
            scope += f":{transaction.producer_id}:{transaction.producer_epoch}"
        # The same bytes mean something else in another format or for another partition.
        return idempotency_of(key, body, scope=scope, meaning=f"{self.format}:{self.partition}:")

    def start(self, body: bytes, key: str | None) -> Pending[Sequence[ProduceReceipt]]:
        """All of it at once, for a small body."""
        records = at_once(self.decode(body))
        return self.append(records, self.idempotency(key, body))

    def encode(self, receipts: Sequence[ProduceReceipt]) -> bytes:
        """The body of the answer."""
        return encode_receipts(receipts)


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
    """What a head says.

    Raises:
        MilenaError: it is at fault.
    """
    answer_type = metadata_type(accept)
    format_ = produce_format(content_type)
    # Proxies differ in what such a body is: its client is told, and others pay nothing for that.
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


def prepare_to_topic(
    ports: Ports,
    caller: Caller,
    names: Mapping[str, str],
    raw_query: str,
    headers: Mapping[str, str],
) -> ProduceHead | None:
    """What a head says, unless it says that a batch comes encoded or that nobody waits for it.

    Raises:
        MilenaError: it is at fault.
    """
    return _prepare(ports, caller, names["topic"], None, raw_query, headers)


def prepare_to_partition(
    ports: Ports,
    caller: Caller,
    names: Mapping[str, str],
    raw_query: str,
    headers: Mapping[str, str],
) -> ProduceHead | None:
    """As ``prepare_to_topic``, of a path that names a partition.

    Raises:
        MilenaError: it is at fault.
    """
    return _prepare(ports, caller, names["topic"], parse_partition(names), raw_query, headers)


def _prepare(
    ports: Ports,
    caller: Caller,
    topic: str,
    partition: int | None,
    raw_query: str,
    headers: Mapping[str, str],
) -> ProduceHead | None:
    head = read_head(
        ports,
        topic,
        partition,
        raw_query=raw_query,
        content_type=headers.get("content-type", ""),
        accept=headers.get("accept", ""),
        may_create=caller.may_create(topic),
    )
    return None if head.format not in DECODERS or head.acks is Acks.NONE else head


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
