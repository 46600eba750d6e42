"""v2: stateless fetch of one partition's records."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from aiohttp import web

from http_api.access.callers import Caller
from http_api.describing.params import ChoiceParam, IntegerParam, Param, ParamPlace
from http_api.describing.schemas import integer_text, parse_query
from http_api.formats import arrow
from http_api.formats.answers import RecordsBody, Wanted, encode_records
from http_api.formats.envelope import parse_time
from http_api.ports.node import ApiLimits, Ports
from http_api.protocol.media import (
    BATCH_TYPE,
    RecordFormat,
    RecordsType,
    StreamFraming,
    records_type,
    stream_type,
    type_in_format,
)
from http_api.records.conditions import etag
from http_api.records.topic_tags import EXAMPLE, PATTERN
from http_api.serving.call import Call
from http_api.serving.lookup import partition_number
from http_api.serving.plain_answer import PlainAnswer
from http_api.shapes.blocks import text
from http_api.streaming.answer import stream_answer
from http_api.v2.record_source import RecordSource, parse_event_id
from milena.model.errors import MalformedRequestError
from milena.model.pending import Pending
from milena.model.requests import Doubt, FetchRequest, FetchResult

MISSING_ON_FETCH = 40402
"""The ``error_code`` of a topic that does not exist."""
_LIMITS = ApiLimits()
_EARLIEST, _LATEST = "earliest", "latest"

OFFSET = Param(
    "offset",
    "the first offset, `earliest`, `latest`, or -N for the last N records",
    text(pattern="^(earliest|latest|-?[0-9]{1,19})$", default=_EARLIEST),
)
TIMESTAMP = Param(
    "timestamp",
    "the first record at or after this time: ms since 1970, or ISO-8601; wins over `offset`",
    text(),
    "2026-01-01T00:00:00Z",
)
COUNT = IntegerParam(name="count", description="at most this many records", least=1, default=None)
MAX_BYTES = IntegerParam(
    name="max_bytes",
    description=(
        "at most this many stored bytes, but at least one batch; "
        f"more than {_LIMITS.fetch_bytes_max} is taken as that, unless the node is configured otherwise"
    ),
    least=1,
    default=1 << 20,
)
TIMEOUT = IntegerParam(
    name="timeout",
    description=(
        "ms to wait when there is nothing yet; "
        f"longer than {_LIMITS.fetch_wait_ms_max} is taken as that, unless the node is configured otherwise"
    ),
    least=0,
    default=0,
)
REPLICA = ChoiceParam(
    name="replica",
    description="`local`: this node's own copy, never forwarded",
    words={"any": False, "local": True},
    hint="local",
)

FOLLOW = ChoiceParam(
    name="follow",
    description=(
        "of NDJSON and server-sent events: go on for as long as the client stays (`true`), or end at the end of the "
        "partition (`false`); `auto`: events go on, NDJSON ends. With `true` and no type in `Accept`, the answer is "
        "NDJSON"
    ),
    words={"auto": None, "true": True, "false": False},
    hint="true or false",
)
FORMAT = ChoiceParam(
    name="format",
    description="how keys and values are written: `binary` is base64, `text` strings of what is UTF-8. A record that "
    "the format cannot show is an error in its place. Not with encoded batches and Arrow, nor with the type of another "
    "format in `Accept`",
    words={
        "json": RecordFormat.JSON,
        "binary": RecordFormat.BINARY,
        "text": RecordFormat.TEXT,
    },
    hint="json, binary or text",
)
VERIFY = ChoiceParam(
    name="verify",
    description=(
        "of encoded batches: check their payloads before they are sent (`true`), as those are that go out as JSON. For "
        "a reader that was sent damaged ones, so that the node hears of it"
    ),
    words={"false": False, "true": True},
    hint="true or false",
)
ISOLATION = ChoiceParam(
    name="isolation",
    description=(
        "`read_uncommitted`: records of transactions that are open or were aborted, too, up to the end of what every "
        "replica has"
    ),
    words={"read_committed": False, "read_uncommitted": True},
    hint="read_committed or read_uncommitted",
)
LAST_EVENT_ID = Param(
    name="Last-Event-ID",
    place=ParamPlace.HEADER,
    description="of a stream: go on behind the event of this id, if any; wins over `offset` and `timestamp`",
    schema=text(pattern=f"^({PATTERN}\\.[0-9]{{1,19}})?$"),
    example=f"{EXAMPLE}.41",
)

_THREAD_BYTES_MIN = 2 << 20
"""Batches above this size, in bytes, are decoded on another thread: on the loop, other requests would wait for ms."""


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """The options of a fetch in the query string."""

    offset: int | str
    timestamp_ms: int | None
    count: int | None
    max_bytes: int
    timeout_ms: int
    is_local: bool
    is_following: bool | None
    format: RecordFormat | None
    """The record format in the query; None: not named."""
    is_verified: bool
    is_uncommitted: bool


@lru_cache(maxsize=1024)
def parse_options(raw_query: str) -> FetchOptions:
    """Return ``?offset=&timestamp=&count=&max_bytes=&timeout=&replica=&follow=&format=&verify=&isolation=``.

    Raises:
        MalformedRequestError: a value is not valid.
    """
    query = parse_query(raw_query)
    timestamp = query.get(TIMESTAMP.name)
    return FetchOptions(
        offset=_offset(query.get(OFFSET.name, _EARLIEST)),
        timestamp_ms=None if timestamp is None else read_timestamp(timestamp),
        count=COUNT.read(query),
        max_bytes=MAX_BYTES.read(query),
        timeout_ms=TIMEOUT.read(query),
        is_local=REPLICA.read(query),
        is_following=FOLLOW.read(query),
        format=FORMAT.read(query) if FORMAT.name in query else None,
        is_verified=VERIFY.read(query),
        is_uncommitted=ISOLATION.read(query),
    )


def _offset(text: str) -> int | str:
    if text in (_EARLIEST, _LATEST):
        return text
    if not text.removeprefix("-").isdigit():
        raise MalformedRequestError(
            f"Invalid parameter 'offset' got '{text}': "
            f"give {_EARLIEST}, {_LATEST}, an offset, or -N for the last N records"
        )
    return integer_text("offset", text)


def read_timestamp(text: str) -> int:
    """Return the time in a query, in ms since 1970.

    Raises:
        MalformedRequestError: the text is neither a number nor an ISO-8601 time.
    """
    if text.removeprefix("-").isdigit():
        return integer_text("timestamp", text)
    # In a query string, the plus of a time zone arrives as a space.
    return parse_time(text.replace(" ", "+"), "timestamp")


async def fetch_records(call: Call) -> web.StreamResponse:
    """Return records from an offset or time on, in one body or as a stream. ``timeout`` waits for records."""
    topic = call.names["topic"]
    partition = partition_number(call.names)
    options = parse_options(call.raw_query)
    type_ = stream_type(_records_type(call.header("Accept"), options.format), options.is_following)
    last_id = call.header(LAST_EVENT_ID.name)
    resumed = parse_event_id(last_id) if last_id else None
    request = _request(call.ports.limits, topic, partition, options)
    if type_.format is RecordFormat.ARROW:
        arrow.check_available()
    if type_.framing is not None:
        topic_tag = ""
        if resumed is not None:
            request = replace(request, offset=resumed.next_offset, timestamp_ms=None)
            topic_tag = resumed.topic_tag
        return await _stream(call, request, options, type_.framing, topic_tag)
    result = await call.ports.reads.fetch(request)
    wanted = _wanted(call.ports.limits, request, options, type_)
    records = await _encode(result, wanted)
    if records.damaged_at is not None:
        doubt = Doubt(
            topic=topic,
            partition=partition,
            offset=records.damaged_at,
            broker_id=result.broker_id,
        )
        await call.ports.reads.doubt(doubt)
        if records.is_barren:
            raise doubt.error
    return fetch_answer(result, records)


def _request(limits: ApiLimits, topic: str, partition: int, options: FetchOptions) -> FetchRequest:
    return FetchRequest(
        topic=topic,
        partition=partition,
        offset=options.offset,
        timestamp_ms=options.timestamp_ms,
        max_bytes=min(options.max_bytes, limits.fetch_bytes_max),
        timeout_ms=min(options.timeout_ms, limits.fetch_wait_ms_max),
        is_local=options.is_local,
        is_uncommitted=options.is_uncommitted,
    )


def _wanted(
    limits: ApiLimits, request: FetchRequest, options: FetchOptions, type_: RecordsType
) -> Wanted:
    return Wanted(
        topic=request.topic,
        partition=request.partition,
        type=type_,
        count=options.count,
        is_verified=options.is_verified,
        has_faults=options.format is not None,
        # ``bytes_max`` limits the decompressed size, which may be far above the stored size.
        bytes_max=limits.fetch_bytes_max,
    )


class FetchHead:
    """Fetches of stored batches that differ only in their query; for the quick lane."""

    content_type = BATCH_TYPE

    def __init__(self, ports: Ports, topic: str, partition: int) -> None:
        self._ports = ports
        self._topic = topic
        self._partition = partition

    def start(
        self, body: bytes, varying: str | None
    ) -> Pending[tuple[FetchResult, RecordsBody]] | None:
        """Read records that are in memory. The usual way waits, reads the disk, asks other nodes and finds errors."""
        del body
        options, limits = parse_options(varying or ""), self._ports.limits
        type_ = stream_type(_records_type(BATCH_TYPE, options.format), options.is_following)
        request = _request(limits, self._topic, self._partition, options)
        if type_.format is not RecordFormat.BATCH or request.max_bytes > _THREAD_BYTES_MIN:
            return None
        result = self._ports.reads.fetch_at_once(request)
        if result is None:
            return None
        records = encode_records(result, _wanted(limits, request, options, type_))
        if records.damaged_at is not None:
            return None
        found: Pending[tuple[FetchResult, RecordsBody]] = Pending()
        found.set_result((result, records))
        return found

    def encode(self, found: tuple[FetchResult, RecordsBody]) -> bytes:
        """Return the body of the response."""
        return found[1].body

    def headers_of(self, found: tuple[FetchResult, RecordsBody]) -> Mapping[str, str]:
        """Return the partition's offsets and the next offset."""
        return dict(_offset_headers(*found))


def prepare_fetch(
    ports: Ports,
    caller: Caller,
    names: Mapping[str, str],
    raw_query: str,
    headers: Mapping[str, str],
) -> FetchHead | None:
    """Return a handler for the quick lane; None if the client asks for another type than stored batches.

    Raises:
        MilenaError: the head is invalid.
    """
    del caller, raw_query
    if headers.get("accept") != BATCH_TYPE:
        return None
    return FetchHead(ports, names["topic"], partition_number(names))


def _records_type(accept: str, format_: RecordFormat | None) -> RecordsType:
    if format_ is None:
        return records_type(accept)
    return type_in_format(accept, format_, "the query asks for")


async def _stream(
    call: Call,
    request: FetchRequest,
    options: FetchOptions,
    framing: StreamFraming,
    topic_tag: str,
) -> web.StreamResponse:
    is_following = options.is_following
    if is_following is None:
        is_following = framing is StreamFraming.EVENTS
    source = RecordSource(
        ports=call.ports,
        request=request,
        format=options.format or RecordFormat.JSON,
        count=options.count,
        is_following=is_following,
        topic_tag=topic_tag,
    )
    return await stream_answer(
        call,
        framing,
        source.bodies(framing),
        topic_missing_code=MISSING_ON_FETCH,
        is_following=is_following,
    )


async def _encode(result: FetchResult, wanted: Wanted) -> RecordsBody:
    if len(result.batches) < _THREAD_BYTES_MIN:
        return encode_records(result, wanted)
    return await asyncio.to_thread(encode_records, result, wanted)


def _last_stable_offset(result: FetchResult) -> int:
    known = result.last_stable_offset
    return result.high_watermark if known is None else known


def _offset_headers(result: FetchResult, records: RecordsBody) -> list[tuple[str, str]]:
    return [
        ("Milena-Start-Offset", str(result.start_offset)),
        ("Milena-Next-Offset", str(records.next_offset)),
        ("Milena-High-Watermark", str(result.high_watermark)),
        ("Milena-Last-Stable-Offset", str(_last_stable_offset(result))),
        ("Milena-Log-Start-Offset", str(result.log_start_offset)),
        ("Milena-Leader-Epoch", str(result.leader_epoch)),
        etag(result.topic_id, records.next_offset),
    ]


def fetch_answer(result: FetchResult, records: RecordsBody) -> PlainAnswer:
    """Return the response, with the partition's offsets and the next offset in headers."""
    return PlainAnswer(records.body, records.content_type, headers=_offset_headers(result, records))
