"""Send a stream: a response whose body arrives in pieces, until its source ends or its client disconnects.

The source is an asynchronous generator of pieces of the body. The server asks for a piece when the previous one was
sent. So a slow client costs the memory of one piece and its send buffer. If no piece comes for some time, because there
are no records or because they cannot be read, an empty line or comment is sent. A stream does not count as a request
in flight.

When the node is about to stop, all streams end. A stream that follows a partition then ends as if it were complete, and
its client continues on another node. A stream with an end of its own ends with an error. Otherwise its client would
mistake the first part for the whole.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import web
from aiohttp.http import HttpVersion11

from http_api.formats import framing
from http_api.protocol.answers import bytes_answer, error_envelope
from http_api.protocol.media import StreamFraming
from http_api.serving.call import Call
from http_api.serving.places import KEEP_ALIVE_MS
from milena.model.errors import DrainingError
from milena.model.quotas import QuotaKey
from milena.model.turns import one_turn

Pieces = AsyncGenerator[bytes, None]


async def stream_answer(
    call: Call,
    kind: StreamFraming,
    pieces: Pieces,
    *,
    topic_missing_code: int,
    is_following: bool,
    places: int = 1,
) -> web.StreamResponse:
    """Send the pieces of a source. An error before the first piece becomes an ordinary error response.

    ``places`` is the number of streams as which the response counts.

    Raises:
        TooManyRequestsError: the limit of streams is reached, or the caller's share of it.
        QuotaExceededError: the caller's quota of streams is used up.
    """
    async with aclosing(pieces):
        quotas = call.shared.quotas
        with (
            quotas.place(call.payer, QuotaKey.STREAM_COUNT, places),
            call.shared.streams.place(call.body.holder, places),
        ):
            first = await anext(pieces)
            if call.request.method == "HEAD":
                return bytes_answer(b"", kind.value)
            with call.body.place.aside():
                return await _send(
                    call, kind, first, pieces, topic_missing_code, is_following=is_following
                )


async def with_keep_alives(pieces: Pieces) -> Pieces:
    """Yield the pieces that are not empty, and an empty one whenever none has come for ``KEEP_ALIVE_MS``.

    The time counts from the end of the previous piece, whatever the source does meanwhile.
    """
    loop = asyncio.get_running_loop()
    said_s = loop.time()
    asked: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            if asked is None:
                asked = loop.create_task(_next_of(pieces))
            left_s = max(0.0, said_s + KEEP_ALIVE_MS / 1000 - loop.time())
            await asyncio.wait([asked], timeout=left_s)
            piece: bytes | None = b""
            if asked.done():
                piece, asked = asked.result(), None
            if piece is None:
                return
            if piece or loop.time() >= said_s + KEEP_ALIVE_MS / 1000:
                yield piece
                said_s = loop.time()
    finally:
        if asked is not None:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)


async def _next_of(pieces: Pieces) -> bytes | None:
    return await anext(pieces, None)


async def _send(
    call: Call,
    kind: StreamFraming,
    first: bytes,
    pieces: Pieces,
    topic_missing_code: int,
    *,
    is_following: bool,
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers=[
            ("Content-Type", kind.value),
            # These headers keep caches from storing the stream, and nginx from buffering it.
            ("Cache-Control", "no-store"),
            ("X-Accel-Buffering", "no"),
            *call.own_headers,
        ]
    )
    if call.request.version < HttpVersion11:
        # Without chunks, only the end of the connection marks the end of the body.
        response.force_close()
    call.begun, call.begun_s = response, asyncio.get_running_loop().time()
    await response.prepare(call.request)
    try:
        async with asyncio.timeout(None) as end, aclosing(with_keep_alives(pieces)) as sent:
            with call.shared.streams.ending_with(end):
                await response.write(framing.opening(kind) + first)
                async for piece in sent:
                    call.rights.check_again()
                    await response.write(piece or framing.keep_alive(kind))
                    await call.pay_piece(piece)
                    # Let other requests run, even if the source has records and the client reads fast.
                    await one_turn()
    except TimeoutError:
        # ``end_all`` has expired the timeout, because the node is about to stop.
        if is_following:
            return response
        failure: Exception = DrainingError(
            "this node stops before the end: continue on another node"
        )
    except ConnectionError:
        raise
    except Exception as error:  # noqa: BLE001 - the stream ends with what its client is told
        failure = error
    else:
        return response
    typed = call.shared.typed(failure, call.request_id)
    envelope = error_envelope(typed, topic_missing_code=topic_missing_code)
    await response.write(framing.failure(kind, envelope))
    return response
