"""Answers that go on for as long as their client stays: how many there are, and how they end.

A stream is a source, an asynchronous generator of pieces of the body, and a client. It takes no place among the
requests in flight. A piece is asked for once the one before is on its way, so that a client that reads slowly costs one
piece and what the socket holds. A source yields nothing (``b""``) when it has waited long enough for a sign of life.
Streams end with their source, with their client, or all at once when the node is about to stop: then the body is
ended as if it were complete, and clients come back for the rest to another node.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http import HttpVersion11

from http_api.answers import Pairs, bytes_answer, error_envelope
from http_api.formats import framing
from http_api.media import StreamFraming
from milena.model.errors import (
    MilenaError,
    NotLeaderError,
    TooManyRequestsError,
    UnavailableError,
)
from milena.model.quotas import QuotaKey
from milena.model.turns import one_turn

if TYPE_CHECKING:
    from http_api.call import Call

Pieces = AsyncGenerator[bytes, None]

KEEP_ALIVE_MS = 20_000
"""A source that has nothing says so this often. Proxies commonly give up on a silent connection after 60 s."""


PIECE_BYTES = 256 << 10
"""Read at a time, stored and again decompressed, or one batch: all that a client who reads slowly costs."""

RETRY_S_FIRST, RETRY_S_MAX, RETRY_S_TOTAL = 0.1, 2.0, 30.0
"""Between tries while a partition cannot be read, and when the stream gives up: another node may know more."""


class Streams:
    """All that are open. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ends: set[asyncio.Timeout] = set()
        self._count = 0
        self.ended_count = 0
        """How often all were ended."""

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def place(self, count: int = 1) -> Iterator[None]:
        """A place among the streams, or as many as it costs.

        Raises:
            TooManyRequestsError: there are as many as there may be.
        """
        if self._count + count > self._most:
            raise TooManyRequestsError(f"{self._count} streams are open; try again later")
        self._count += count
        try:
            yield
        finally:
            self._count -= count

    @contextmanager
    def ending_with(self, end: asyncio.Timeout) -> Iterator[None]:
        """``end_all`` lets this time run out."""
        self._ends.add(end)
        try:
            yield
        finally:
            self._ends.discard(end)

    def end_all(self) -> None:
        """End every stream, in order; those that begin later go on."""
        now = asyncio.get_running_loop().time()
        self.ended_count += 1
        ends, self._ends = self._ends, set()
        for end in ends:
            end.reschedule(now)


async def stream_answer(
    call: "Call",
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
            call.shared.streams.place(places),
        ):
            first = await anext(pieces)
            if call.request.method == "HEAD":
                return bytes_answer(b"", kind.value, headers=headers)
            with call.shared.in_flight.without_one(call.body.holder):
                return await _send(call, kind, first, pieces, topic_missing_code, headers)


async def _send(
    call: "Call",
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
    except MilenaError as error:
        envelope = error_envelope(error, topic_missing_code=topic_missing_code)
        await response.write(framing.failure(kind, envelope))
    return response


async def pause(seconds: float) -> None:
    """Wait, on the loop's clock."""
    loop = asyncio.get_running_loop()
    waiting = loop.create_future()
    timer = loop.call_later(seconds, waiting.set_result, None)
    try:
        await waiting
    finally:
        timer.cancel()


class Retries:
    """Waits, each twice as long as the one before, until it has been too long."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.reset()

    def reset(self) -> None:
        """Begin anew after a success."""
        self._next_s = RETRY_S_FIRST
        self._failing_since: float | None = None

    async def wait_after(self, error: UnavailableError | NotLeaderError) -> None:
        """Wait before the next try, or raise the error when there was enough of them."""
        now = self._loop.time()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= RETRY_S_TOTAL:
            raise error
        await pause(self._next_s)
        self._next_s = min(2 * self._next_s, RETRY_S_MAX)
