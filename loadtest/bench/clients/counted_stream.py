"""A connection on which a client sends prepared messages without a pause, and counts their acknowledgements.

The client sends buffers of hundreds of messages, counts acknowledgements by one search in C per read, and never parses
a message. So it uses no more CPU than a compiled client, and leaves the servers the rest.
"""

import asyncio
from time import perf_counter

from loadtest.bench.clients.http_load import HttpLoadError, LoadConnection

IN_FLIGHT_MAX = 4096
"""The most messages without an acknowledgement; JetStream's own clients have the same limit."""
_WAIT_S = 30.0


class Counter:
    """Counts a mark in a stream of bytes, even if two reads split the mark. The mark cannot overlap itself."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._rest = b""

    def feed(self, data: bytes) -> int:
        """Return how many marks end in ``data``."""
        whole = self._rest + data
        # Keep one byte less than the mark, so that no complete mark is counted again.
        self._rest = whole[-(len(self._mark) - 1) :]
        return whole.count(self._mark)


class CountedStream(LoadConnection, asyncio.Protocol):
    """The base class of these clients. ``server`` is the server's name in errors."""

    def __init__(self, server: str) -> None:
        self.error: HttpLoadError | None = None
        self._server = server
        self._counter: Counter | None = None
        """None before ``begin``: the client reads the responses itself."""
        self._counted = 0
        self._wanted = 0
        self._reached: asyncio.Future[None] | None = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """Fail the pending wait; asyncio calls this."""
        self.fail(f"{self._server} closed the connection: {exc or 'no reason given'}")

    def begin(self, mark: bytes) -> None:
        """Count this mark from now on."""
        self._counter, self._counted = Counter(mark), 0

    def feed(self, data: bytes) -> None:
        """Count the marks in the next bytes from the server."""
        assert self._counter is not None, "it has begun"
        self._counted += self._counter.feed(data)
        if self._counted >= self._wanted:
            self._wake()

    async def until(self, count: int) -> None:
        """Wait until ``count`` marks have arrived since ``begin``.

        Raises:
            HttpLoadError: the connection has failed, or they did not come in time.
        """
        if self.error is None and self._counted < count:
            self._wanted = count
            self._reached = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(_WAIT_S):
                    await self._reached
            except TimeoutError:
                self.fail(f"{self._server}: {self._counted} of {count} came")
        if self.error is not None:
            raise self.error

    async def send(
        self, chunk: bytes, size: int, *, seconds: float | None = None, count: int | None = None
    ) -> int:
        """Send a chunk of ``size`` messages repeatedly, for ``seconds`` or until at least ``count`` messages are sent.

        Return how many were sent, when all are acknowledged.
        """
        ends_s = None if seconds is None else perf_counter() + seconds
        sent = 0
        while (ends_s is None or perf_counter() < ends_s) and (count is None or sent < count):
            await self.until(sent - IN_FLIGHT_MAX + size)
            room = IN_FLIGHT_MAX - (sent - self._counted)
            if count is not None:
                room = min(room, count - sent + size - 1)
            chunks = room // size
            self.write(chunk * chunks)
            sent += chunks * size
        await self.until(sent)
        return sent

    def fail(self, message: str) -> None:
        """End the pending wait and all later ones with an error; the first error counts."""
        self.error = self.error or HttpLoadError(message)
        self._wake()

    def _wake(self) -> None:
        if self._reached is not None and not self._reached.done():
            self._reached.set_result(None)
