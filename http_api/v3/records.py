"""v3: produce: one long request of records, and a receipt for each while it is still open.

What arrives together is appended together, so that a client that sends record after record gets the speed of batches.
Receipts come in the order of the records. The answer is 200 once the first of them is there: what is wrong with a
record is in its receipt. After bytes that are not JSON, of which the last receipt tells, nothing more is read.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson
from aiohttp import web
from aiohttp.http import HttpVersion11

from http_api.answers import SERVER, error_envelope
from http_api.call import Call
from http_api.errors import InvalidFieldError
from http_api.formats.json_texts import JsonTexts
from http_api.formats.v3_records import V3Record, columns_of, iso_time, parse_record
from http_api.media import JSON_TYPE, check_json_type
from http_api.ports import Acks, ProduceRequest, Receipt, Receipts
from http_api.v2.produce import parse_options
from http_api.v3.resources import cluster_id
from storage.errors import MilenaError

_TOPIC_MISSING = 40401
_LINE_END = b"\r\n"
_STEP_BYTES = 128 << 10
"""Of a body that comes in large pieces (a compressed one comes whole), so that it holds nobody up."""

Item = V3Record | MilenaError
"""A record, or why it is none."""


@dataclass(frozen=True, slots=True)
class _Job:
    """What holds for all records of a request."""

    cluster_id: str
    topic: str
    acks: Acks
    timeout_ms: int

    def receipt_head(self) -> bytes:
        """What all receipts of records that were taken begin with."""
        common = {"error_code": 200, "cluster_id": self.cluster_id, "topic_name": self.topic}
        return orjson.dumps(common).removesuffix(b"}") + b","


async def produce(call: Call) -> web.StreamResponse:
    """Append records for as long as they come."""
    check_json_type(call.header("Content-Type"))
    options, limits = parse_options(call.raw_query), call.ports.limits
    job = _Job(
        cluster_id=cluster_id(call),
        topic=call.names["topic"],
        acks=options.acks,
        timeout_ms=min(
            options.timeout_ms or limits.produce_timeout_ms_default, limits.produce_timeout_ms_max
        ),
    )
    texts = JsonTexts(limits.request_bytes_max)
    answer = _Answer(call)
    with call.shared.streams.place(), call.outside_of_flight():
        try:
            async for data in call.pieces(lambda: texts.kept_bytes > 0):
                for start in range(0, len(data), _STEP_BYTES):
                    await _take(call, job, texts, data[start : start + _STEP_BYTES], answer)
                call.account(texts.kept_bytes)
            texts.close()
        except MilenaError as error:
            if not answer.has_begun:
                raise
            await answer.write([_failure(error)])
    if not answer.has_begun:
        raise InvalidFieldError("Payload error. Request body is empty; records are expected.")
    return answer.response


class _Answer:
    """Receipts on their way to the client; begins with the first."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.has_begun = False
        self.response = web.StreamResponse(
            headers=[
                ("Content-Type", JSON_TYPE),
                ("X-Request-Id", call.request_id),
                ("Server", SERVER),
            ]
        )
        if call.request.version < HttpVersion11:
            self.response.force_close()

    async def write(self, receipts: Sequence[bytes]) -> None:
        """Send these, each a JSON text with its line end."""
        if not receipts:
            return
        if not self.has_begun:
            self.has_begun = True
            self._call.begun = self.response
            self._call.begun_s = asyncio.get_running_loop().time()
            await self.response.prepare(self._call.request)
        await self.response.write(b"".join(receipts))


async def _take(call: Call, job: _Job, texts: JsonTexts, data: bytes, answer: _Answer) -> None:
    """Append what has come whole, and then raise what is wrong behind it."""
    values, broken = texts.feed(data)
    await answer.write(await _append(call, job, [_item(value) for value in values]))
    if broken is not None:
        raise broken


def _item(value: object) -> Item:
    try:
        return parse_record(value)
    except MilenaError as error:
        return error


async def _append(call: Call, job: _Job, items: Sequence[Item]) -> list[bytes]:
    """A receipt for each, in order."""
    records = [item for item in items if isinstance(item, V3Record)]
    receipts = iter(await _produced(call, job, records) if records else ())
    return [next(receipts) if isinstance(item, V3Record) else _failure(item) for item in items]


async def _produced(call: Call, job: _Job, records: Sequence[V3Record]) -> list[bytes]:
    request = ProduceRequest(
        topic=job.topic, records=columns_of(records), acks=job.acks, timeout_ms=job.timeout_ms
    )
    try:
        receipts = await call.ports.records.produce(request)
    except MilenaError as error:
        return [_failure(error)] * len(records)
    head = job.receipt_head()
    return [
        _receipt(head, record, partition, offset) if error is None else _failure(error)
        for record, (partition, offset, error) in zip(records, _columns(receipts), strict=True)
    ]


def _columns(
    receipts: Sequence[Receipt],
) -> Iterable[tuple[int, int | None, MilenaError | None]]:
    """Partition, offset and error of each."""
    if isinstance(receipts, Receipts):
        errors = map(receipts.errors.get, receipts.partitions)
        return zip(receipts.partitions, receipts.offsets, errors, strict=True)
    return ((receipt.partition, receipt.offset, receipt.error) for receipt in receipts)


def _receipt(head: bytes, record: V3Record, partition: int, offset: int | None) -> bytes:
    """By hand, for there is one for each record: what JSON could disagree about is in ``head``."""
    time_ms = record.timestamp_ms
    return b'%b"partition_id":%d,"offset":%b,"timestamp":%b,"key":%b,"value":%b}\r\n' % (
        head,
        partition,
        b"null" if offset is None else b"%d" % offset,
        b"null" if time_ms is None else b'"%b"' % iso_time(time_ms).encode(),
        record.key.receipt(),
        record.value.receipt(),
    )


def _failure(error: MilenaError) -> bytes:
    envelope = error_envelope(error, topic_missing_code=_TOPIC_MISSING)
    return orjson.dumps(envelope) + _LINE_END
