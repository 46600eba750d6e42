"""A stream as it is sent: piece by piece, for as long as its client stays.

A stream is a source, an asynchronous generator of pieces of the body, and a client. It takes no place among the
requests in flight. A piece is asked for once the one before is on its way, so that a client that reads slowly costs one
piece and what the socket holds. A source yields nothing (``b""``) when it has waited long enough for a sign of life.
Streams end with their source, with their client, or all at once when the node is about to stop: then the body is
ended as if it were complete, and clients come back for the rest to another node.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import web
from aiohttp.http import HttpVersion11

from http_api.formats import framing
from http_api.protocol.answers import Pairs, bytes_answer, error_envelope
from http_api.protocol.media import StreamFraming
from http_api.serving.call import Call
from milena.model.quotas import QuotaKey
from milena.model.turns import one_turn

Pieces = AsyncGenerator[bytes, None]


async def stream_answer(
    call: Call,
    kind: StreamFraming,
    pieces: Pieces,
    *,
    topic_missing_code: int,
    headers: Pairs = (),
    places: int = 1,
) -> web.StreamResponse:
    """Send what the source yields. What it raises before its first piece is answered like any error.

    ``places``: among the streams, that it takes.

    Raises:
        TooManyRequestsError: there are as many streams as there may be.
        QuotaExceededError: the caller has as many as it may have.
    """
    async with aclosing(pieces):
        quotas = call.shared.quotas
        with (
            quotas.place(call.payer, QuotaKey.STREAM_COUNT, places),
            call.shared.streams.place(call.body.holder, places),
        ):
            first = await anext(pieces)
            if call.request.method == "HEAD":
                return bytes_answer(b"", kind.value, headers=headers)
            with call.body.place.aside():
                return await _send(call, kind, first, pieces, topic_missing_code, headers)


async def _send(
    call: Call,
    kind: StreamFraming,
    first: bytes,
    pieces: Pieces,
    topic_missing_code: int,
    headers: Pairs,
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers=[
            ("Content-Type", kind.value),
            # Else caches would keep it, and nginx would gather it.
            ("Cache-Control", "no-store"),
            ("X-Accel-Buffering", "no"),
            *call.own_headers,
            *headers,
        ]
    )
    if call.request.version < HttpVersion11:
        # Without chunks, only the end of the connection tells the end of the body.
        response.force_close()
    call.begun, call.begun_s = response, asyncio.get_running_loop().time()
    await response.prepare(call.request)
    try:
        async with asyncio.timeout(None) as end:
            with call.shared.streams.ending_with(end):
                await response.write(framing.opening(kind) + first)
                async for piece in pieces:
                    call.rights.check_again()
                    await response.write(piece or framing.keep_alive(kind))
                    await call.pay_piece(piece)
                    # A client that takes everything at once must not keep others waiting.
                    await one_turn()
    except TimeoutError:
        # The node is about to stop.
        pass
    except ConnectionError:
        raise
    except Exception as error:  # noqa: BLE001 - the stream ends with what its client is told
        typed = call.shared.typed(error, call.request_id)
        envelope = error_envelope(typed, topic_missing_code=topic_missing_code)
        await response.write(framing.failure(kind, envelope))
    return response
