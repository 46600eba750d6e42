"""v2: stateless fetch of one partition's records."""

import asyncio
from dataclasses import dataclass
from functools import lru_cache

from aiohttp import web

from http_api.answers import bytes_answer
from http_api.call import Call
from http_api.formats.answers import RecordsBody, Wanted, encode_records
from http_api.formats.envelope import parse_time
from http_api.lookup import partition_number
from http_api.media import records_type
from http_api.ports import FetchRequest, FetchResult
from http_api.schemas import integer_param, integer_text, parse_query
from storage.errors import MalformedRequestError

MAX_BYTES_DEFAULT = 1 << 20

_THREAD_BYTES_MIN = 2 << 20
"""Above this, decoding takes milliseconds, and another thread does it so that others are not kept waiting."""


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """What the query string asks for."""

    offset: int | str
    timestamp_ms: int | None
    count: int | None
    max_bytes: int
    timeout_ms: int
    is_local: bool


@lru_cache(maxsize=1024)
def parse_options(raw_query: str) -> FetchOptions:
    """``?offset=&timestamp=&count=&max_bytes=&timeout=&replica=``.

    Raises:
        MalformedRequestError: one of them is not what it should be.
    """
    query = parse_query(raw_query)
    replica = query.get("replica", "any")
    if replica not in ("any", "local"):
        raise MalformedRequestError(f"Invalid parameter 'replica' got '{replica}': use local")
    count = integer_param(query, "count", 0, least=1)
    timestamp = query.get("timestamp")
    return FetchOptions(
        offset=_offset(query.get("offset", "earliest")),
        timestamp_ms=None if timestamp is None else _timestamp(timestamp),
        count=count or None,
        max_bytes=integer_param(query, "max_bytes", MAX_BYTES_DEFAULT, least=1),
        timeout_ms=integer_param(query, "timeout", 0, least=0),
        is_local=replica == "local",
    )


def _offset(text: str) -> int | str:
    if text in ("earliest", "latest"):
        return text
    return integer_text("offset", text)


def _timestamp(text: str) -> int:
    if text.removeprefix("-").isdigit():
        return integer_text("timestamp", text)
    # In a query string, the plus of a time zone arrives as a space.
    return parse_time(text.replace(" ", "+"), "timestamp")


async def fetch_records(call: Call) -> web.Response:
    """Records from an offset or time on, waiting for some if asked to."""
    topic = call.names["topic"]
    partition = partition_number(call)
    type_ = records_type(call.header("Accept"))
    options = parse_options(call.raw_query)
    limits = call.ports.limits
    max_bytes = min(options.max_bytes, limits.fetch_bytes_max)
    result = await call.ports.records.fetch(
        FetchRequest(
            topic=topic,
            partition=partition,
            offset=options.offset,
            timestamp_ms=options.timestamp_ms,
            max_bytes=max_bytes,
            timeout_ms=min(options.timeout_ms, limits.fetch_wait_ms_max),
            is_local=options.is_local,
        )
    )
    wanted = Wanted(
        topic=topic,
        partition=partition,
        type=type_,
        count=options.count,
        # Decompressed records may be this much larger than the stored ones, and no more.
        bytes_max=limits.fetch_bytes_max,
    )
    return fetch_answer(result, await _encode(result, wanted))


async def _encode(result: FetchResult, wanted: Wanted) -> RecordsBody:
    if len(result.batches) < _THREAD_BYTES_MIN:
        return encode_records(result, wanted)
    return await asyncio.to_thread(encode_records, result, wanted)


def fetch_answer(result: FetchResult, records: RecordsBody) -> web.Response:
    """The answer; headers tell where the partition stands and where to go on."""
    return bytes_answer(
        records.body,
        records.content_type,
        headers=[
            ("Milena-Start-Offset", str(result.start_offset)),
            ("Milena-Next-Offset", str(records.next_offset)),
            ("Milena-High-Watermark", str(result.high_watermark)),
            ("Milena-Log-Start-Offset", str(result.log_start_offset)),
            ("Milena-Leader-Epoch", str(result.leader_epoch)),
        ],
    )
