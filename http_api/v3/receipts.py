"""v3: append records that were sent as separate objects, and encode their receipts, for both produce endpoints."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import orjson

from http_api.formats.v3_records import V3Record, columns_of, iso_time, parse_record, text_record
from http_api.protocol.answers import error_envelope
from http_api.records.idempotency_key import IDEMPOTENCY_KEY
from http_api.records.produce_head import parse_options
from http_api.records.transaction_header import named_transaction
from http_api.serving.call import Call
from http_api.v3.resources import cluster_id
from milena.model.errors import MalformedRequestError, MilenaError
from milena.model.requests import (
    Acks,
    ProduceReceipt,
    ProduceRequest,
    ProducerTransaction,
    Receipts,
    Records,
)

_TOPIC_MISSING = 40401

Item = V3Record | MilenaError
"""A record, or the error of an item that could not be parsed as one."""


@dataclass(frozen=True, slots=True)
class Job:
    """The options of a request, for all of its records."""

    cluster_id: str
    topic: str
    acks: Acks
    timeout_ms: int
    transaction: ProducerTransaction | None
    may_create: bool

    def request(self, records: Records) -> ProduceRequest:
        """Return the request to append these records."""
        return ProduceRequest(
            topic=self.topic,
            records=records,
            acks=self.acks,
            timeout_ms=self.timeout_ms,
            transaction=self.transaction,
            wants_times=True,
            may_create=self.may_create,
        )

    def receipt_head(self) -> bytes:
        """Return the start of the receipt of a record that was written; it is the same for all records."""
        common = {"error_code": 200, "cluster_id": self.cluster_id, "topic_name": self.topic}
        return orjson.dumps(common).removesuffix(b"}") + b","


async def job_of(call: Call) -> Job:
    """Return the options in the path, the query and the headers.

    Raises:
        MilenaError: there is no such cluster, or an option is invalid.
    """
    if IDEMPOTENCY_KEY.name in call.request.headers:
        raise MalformedRequestError(
            f"v3 answers each record by itself, and a repeat under one {IDEMPOTENCY_KEY.name} cannot: send the records "
            "to POST /topics/{topic} with it, or leave it out"
        )
    options = parse_options(call.raw_query)
    return Job(
        cluster_id=cluster_id(call),
        topic=call.names["topic"],
        acks=options.acks,
        timeout_ms=call.ports.limits.produce_wait_ms(options.timeout_ms),
        transaction=await named_transaction(call, options.acks),
        may_create=call.rights.may_create(call.names["topic"]),
    )


def item_of(value: object) -> Item:
    """Parse a JSON value as a record; return the record or the error."""
    try:
        return parse_record(value)
    except MilenaError as error:
        return error


async def append(call: Call, job: Job, items: Sequence[Item]) -> list[bytes]:
    """Append records together. Return a receipt for each item, as JSON, in order."""
    records = [item for item in items if isinstance(item, V3Record)]
    receipts = iter(await _produced(call, job, records) if records else ())
    return [next(receipts) if isinstance(item, V3Record) else failure(item) for item in items]


async def append_texts(call: Call, job: Job, texts: Sequence[bytes]) -> list[bytes]:
    """Append records that have only a text as value (``texts_of``). Return a receipt for each, as JSON, in order."""
    try:
        receipts = await call.ports.produce.produce(
            job.request(Records(keys=None, values=list(texts)))
        )
    except MilenaError as error:
        return [failure(error)] * len(texts)
    if isinstance(receipts, Receipts) and not receipts.errors and None not in receipts.offsets:
        times = map(_time, _times(receipts))
        places = zip(receipts.partitions, receipts.offsets, times, map(len, texts), strict=True)
        return list(map(_text_receipt(job.receipt_head()).__mod__, places))
    return _receipts(job, map(text_record, texts), receipts)


async def _produced(call: Call, job: Job, records: Sequence[V3Record]) -> list[bytes]:
    try:
        receipts = await call.ports.produce.produce(job.request(columns_of(records)))
    except MilenaError as error:
        return [failure(error)] * len(records)
    return _receipts(job, records, receipts)


def _receipts(
    job: Job, records: Iterable[V3Record], receipts: Sequence[ProduceReceipt]
) -> list[bytes]:
    head = job.receipt_head()
    return [
        _receipt(head, record, partition, offset, time_ms) if error is None else failure(error)
        for record, (partition, offset, time_ms, error) in zip(
            records, _columns(receipts), strict=True
        )
    ]


def _columns(
    receipts: Sequence[ProduceReceipt],
) -> Iterable[tuple[int, int | None, int | None, MilenaError | None]]:
    """Return partition, offset, timestamp and error of each receipt."""
    if isinstance(receipts, Receipts):
        errors = map(receipts.errors.get, receipts.partitions)
        times = _times(receipts)
        return zip(receipts.partitions, receipts.offsets, times, errors, strict=True)
    return ((r.partition, r.offset, r.timestamp_ms, r.error) for r in receipts)


def _times(receipts: Receipts) -> Sequence[int | None]:
    return [None] * len(receipts) if receipts.times is None else receipts.times


def _receipt(
    head: bytes, record: V3Record, partition: int, offset: int | None, time_ms: int | None
) -> bytes:
    """Return the receipt of a record as JSON. ``head`` is the result of ``receipt_head``.

    It is formatted without a JSON encoder, because there is one receipt per record.
    """
    return b'%b"partition_id":%d,"offset":%b,"timestamp":%b,"key":%b,"value":%b}' % (
        head,
        partition,
        b"null" if offset is None else b"%d" % offset,
        _time(time_ms),
        record.key.receipt(),
        record.value.receipt(),
    )


@lru_cache(maxsize=64)
def _time(time_ms: int | None) -> bytes:
    """Return a time as JSON. It is cached, because records that arrive together usually have the same time."""
    return b"null" if time_ms is None else b'"%b"' % iso_time(time_ms).encode()


def _text_receipt(head: bytes) -> bytes:
    """Return a format string for the receipt of a text, with placeholders for partition, offset, time and size."""
    return head.replace(b"%", b"%%") + (
        b'"partition_id":%d,"offset":%d,"timestamp":%b,"key":null,'
        b'"value":{"type":"STRING","size":%d}}'
    )


def failure(error: MilenaError) -> bytes:
    """Return the receipt of a record that failed."""
    return orjson.dumps(error_envelope(error, topic_missing_code=_TOPIC_MISSING))
