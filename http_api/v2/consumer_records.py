"""v2: the next records of a REST consumer, as one response or as a stream."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from http_api.describing.params import IntegerParam
from http_api.formats.answers import rows_of
from http_api.formats.framing import frame
from http_api.formats.rows import RowWriter, json_list
from http_api.formats.selection import Selection, select
from http_api.ports.groups import Delivered, DeliveredRecords
from http_api.protocol.answers import bytes_answer
from http_api.protocol.media import RecordFormat, StreamFraming, stream_type, type_in_format
from http_api.serving.call import Call
from http_api.serving.places import KEEP_ALIVE_MS, PASSING_ERRORS, PIECE_BYTES, Retries
from http_api.streaming.answer import stream_answer
from http_api.v2.consumers import place, place_to_read
from http_api.v2.fetch import FOLLOW
from http_api.v2.tokens import read_token
from milena.model.access import Operation, ResourceType
from milena.model.errors import (
    MalformedRequestError,
    MilenaError,
)
from milena.model.requests import Doubt, FetchResult

TIMEOUT = IntegerParam(
    name="timeout",
    description="ms to wait when there is nothing yet; absent: what the consumer was created with",
    least=0,
    default=None,
)
MAX_BYTES = IntegerParam(
    name="max_bytes",
    description="at most so many bytes of keys and values, but at least one record; absent: 1 MiB",
    least=1,
    default=None,
)

_THREAD_BYTES_MIN = 1 << 20
"""Stored batches above this size, in bytes, are encoded on another thread."""

_ALL = 1 << 62
"""No limit, because the coordinator has already applied the limits to the delivery."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Records as JSON texts, and their event ids. ``doubt`` reports the first damaged record; None without one."""

    rows: list[bytes]
    ids: list[bytes]
    doubt: Doubt | None = None


async def get_records(call: Call) -> web.StreamResponse:
    """Return the next records."""
    group, instance = await place_to_read(call)
    query = call.query()
    token = read_token(query)
    timeout_ms, max_bytes = TIMEOUT.read(query), MAX_BYTES.read(query)
    is_following = FOLLOW.read(query)
    consumers, limits = call.ports.consumers, call.ports.limits
    own = RecordFormat(await consumers.format_of(group, instance))
    own_type = type_in_format(call.header("Accept"), own, "the consumer was created for")
    type_ = stream_type(own_type, is_following)
    if call.request.method == "HEAD":
        # A ``HEAD`` request must have no effect, so it does not take records from the consumer.
        return bytes_answer(b"", type_.content_type)
    if timeout_ms is not None:
        timeout_ms = min(timeout_ms, limits.fetch_wait_ms_max)
    if type_.framing is not None:
        if token:
            raise MalformedRequestError(
                "a stream cannot be asked for again: send token with application/json, or no Accept"
            )
        if is_following is None:
            is_following = type_.framing is StreamFraming.EVENTS
        pieces = _pieces(call, type_.framing, timeout_ms, max_bytes, is_following=is_following)
        return await stream_answer(
            call, type_.framing, pieces, topic_missing_code=40401, is_following=is_following
        )
    delivered = await consumers.records(
        group, instance, timeout_ms=timeout_ms, max_bytes=max_bytes, token=token
    )
    async with _given_back(call, group, instance, delivered):
        written = await _written(call, delivered)
    return bytes_answer(json_list(written.rows), type_.content_type)


async def _pieces(
    call: Call,
    framing: StreamFraming,
    timeout_ms: int | None,
    max_bytes: int | None,
    *,
    is_following: bool,
) -> AsyncGenerator[bytes, None]:
    """Yield the records of calls to the coordinator: of one call, or of one after another (``is_following``)."""
    group, instance = await place(call)
    retries = Retries()
    if is_following:
        # This empty piece starts the response before there are any records.
        yield b""
        timeout_ms = KEEP_ALIVE_MS
        max_bytes = min(max_bytes or PIECE_BYTES, PIECE_BYTES)
    while True:
        try:
            delivered = await call.ports.consumers.records(
                group, instance, timeout_ms=timeout_ms, max_bytes=max_bytes
            )
        except PASSING_ERRORS as error:
            if not is_following:
                raise
            await retries.wait_after(error)
            continue
        retries.reset()
        async with _given_back(call, group, instance, delivered):
            written = await _written(call, delivered)
            # If the client disconnects while this piece is sent, ``_given_back`` lets the records be delivered again.
            yield frame(framing, written.rows, written.ids)
        if not is_following:
            return


@asynccontextmanager
async def _given_back(
    call: Call, group: str, instance: str, delivered: Delivered
) -> AsyncGenerator[None, None]:
    """If sending the records fails within this block, let the next call get them again.

    A delivery with a token is undone only if the client got an error. Otherwise the client repeats the call with the
    token.
    """
    try:
        yield
    except MilenaError:
        await call.ports.consumers.refuse(group, instance, delivered)
        raise
    except BaseException:
        call.ports.consumers.take_back(group, instance, delivered)
        raise


async def _written(call: Call, delivered: Delivered) -> Rows:
    """Encode all delivered records.

    Raises:
        ForbiddenError: the caller does not have the right to read one of the topics.
        ReplicaDamagedError: a record is damaged. Only coordinators of earlier releases deliver unchecked records.
    """
    topics = {delivery.topic for delivery in delivered.deliveries}
    call.rights.authorize(Operation.READ, ResourceType.TOPIC, topics)
    size = sum(len(delivery.batches) for delivery in delivered.deliveries)
    if size < _THREAD_BYTES_MIN:
        written = _write(delivered)
    else:
        written = await asyncio.to_thread(_write, delivered)
    if written.doubt is not None:
        await call.ports.reads.doubt(written.doubt)
        raise written.doubt.error
    return written


def _write(delivered: Delivered) -> Rows:
    format_ = RecordFormat(delivered.format)
    rows: list[bytes] = []
    ids: list[bytes] = []
    for delivery in delivered.deliveries:
        selection = _selection(delivery)
        if selection.damaged_at is not None:
            doubt = Doubt(
                topic=delivery.topic, partition=delivery.partition, offset=selection.damaged_at
            )
            return Rows([], [], doubt)
        rows += rows_of(RowWriter(delivery.topic, delivery.partition), selection, format_)
        ids += _ids(delivery, selection)
    return Rows(rows, ids)


def _selection(delivery: DeliveredRecords) -> Selection:
    result = FetchResult(
        start_offset=delivery.start_offset,
        high_watermark=delivery.end_offset,
        log_start_offset=0,
        leader_epoch=-1,
        batches=delivery.batches,
    )
    return select(result, count=None, bytes_max=_ALL)


def _ids(delivery: DeliveredRecords, selection: Selection) -> Iterable[bytes]:
    head = f"{delivery.topic}:{delivery.partition}:".encode()
    return [head + b"%d" % offset for piece in selection.slices for offset in piece.offsets]
