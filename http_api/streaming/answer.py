"""A stream as it is sent: piece by piece, as long as its client stays.

A stream is a source (an asynchronous generator of pieces of the body) and a client. It does not count as a request in
flight. The server asks for a piece once the previous one is on its way. So a slow client costs one piece and the bytes
in its socket. A source that has waited long enough for a sign of life yields nothing (``b""``).

Streams end with their source or with their client. All end at once when the node is about to stop. The body of a stream
that follows then ends as if it were complete, and its client resumes on another node. A stream that does not follow
ends with an error: otherwise its client would take the part for the whole.
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
    """Send the pieces that the source yields. An error before its first piece becomes an ordinary error response.

    ``places``: the number of places that it takes among the streams.

    Raises:
        TooManyRequestsError: the bound on streams is reached.
        QuotaExceededError: the caller's bound on streams is reached.
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
            # Otherwise caches would keep it, and nginx would buffer it.
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
        async with asyncio.timeout(None) as end:
            with call.shared.streams.ending_with(end):
                await response.write(framing.opening(kind) + first)
                async for piece in pieces:
                    call.rights.check_again()
                    await response.write(piece or framing.keep_alive(kind))
                    await call.pay_piece(piece)
                    # A client that reads everything at once must not keep others waiting.
                    await one_turn()
    except TimeoutError:
        # The node is about to stop.
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
