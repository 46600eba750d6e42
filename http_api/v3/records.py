"""v3: produce: one long request of records, and a receipt for each while it is still open.

What arrives together is appended together, so that a client that sends record after record gets the speed of batches.
Receipts come in the order of the records. The answer is 200 once the first of them is there: what is wrong with a
record is in its receipt. After bytes that are not JSON, of which the last receipt tells, nothing more is read.
"""

import asyncio
from collections.abc import Sequence
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
from http_api.ports import Acks, ProduceRequest, Receipt
from http_api.v2.produce import parse_options
from http_api.v3.resources import cluster_id
from storage.errors import MilenaError

_TOPIC_MISSING = 40401
_LINE_END = b"\r\n"

Item = V3Record | MilenaError
"""A record, or why it is none."""


@dataclass(frozen=True, slots=True)
class _Job:
    """What holds for all records of a request."""

    cluster_id: str
    topic: str
    acks: Acks
    timeout_ms: int


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
                await _take(call, job, texts, data, answer)
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

    async def write(self, receipts: Sequence[object]) -> None:
        """Send these."""
        if not receipts:
            return
        if not self.has_begun:
            self.has_begun = True
            self._call.begun = self.response
            self._call.begun_s = asyncio.get_running_loop().time()
            await self.response.prepare(self._call.request)
        await self.response.write(b"".join(orjson.dumps(item) + _LINE_END for item in receipts))


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


async def _append(call: Call, job: _Job, items: Sequence[Item]) -> list[dict[str, object]]:
    """A receipt for each, in order."""
    records = [item for item in items if isinstance(item, V3Record)]
    receipts = iter(await _produced(call, job, records) if records else ())
    return [
        _receipt(job, item, next(receipts)) if isinstance(item, V3Record) else _failure(item)
        for item in items
    ]


async def _produced(
    call: Call, job: _Job, records: Sequence[V3Record]
) -> Sequence[Receipt | MilenaError]:
    try:
        return await call.ports.records.produce(
            ProduceRequest(
                topic=job.topic,
                records=columns_of(records),
                acks=job.acks,
                timeout_ms=job.timeout_ms,
            )
        )
    except MilenaError as error:
        return [error] * len(records)


def _receipt(job: _Job, record: V3Record, receipt: Receipt | MilenaError) -> dict[str, object]:
    if isinstance(receipt, MilenaError):
        return _failure(receipt)
    if receipt.error is not None:
        return _failure(receipt.error)
    time_ms = record.timestamp_ms
    return {
        "error_code": 200,
        "cluster_id": job.cluster_id,
        "topic_name": job.topic,
        "partition_id": receipt.partition,
        "offset": receipt.offset,
        "timestamp": None if time_ms is None else iso_time(time_ms),
        "key": record.key.receipt(),
        "value": record.value.receipt(),
    }


def _failure(error: MilenaError) -> dict[str, object]:
    return error_envelope(error, topic_missing_code=_TOPIC_MISSING)
