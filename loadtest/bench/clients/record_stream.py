"""Produce with the v3 API: one long request with one JSON object per record, and a receipt for each record.

As in ``nats_wire``, the client sends prepared buffers of hundreds of records and counts receipts by one search in C per
read. So both clients of the comparison leave the servers the same CPU.
"""

import asyncio
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.clients.nats_wire import IN_FLIGHT_MAX, Counter

RECORDS_PER_CHUNK = 256
_RECEIPT = b'"error_code":200,'
_REFUSAL = b'"message":'
_WAIT_S = 30.0


def record_of(size: int) -> bytes:
    """Return a record whose value has this many bytes, on one line."""
    return b'{"value":{"type":"STRING","data":"' + b"x" * size + b'"}}\n'


def chunk_of(records: bytes) -> bytes:
    """Return records as a chunk of a body of unknown length (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(records), records)


class RecordStream(asyncio.Protocol):
    """One request to which records are added until it is closed; at most ``IN_FLIGHT_MAX`` records lack a receipt."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._receipts = Counter(_RECEIPT)
        self._receipt_count = 0
        self._wanted = 0
        self._reached: asyncio.Future[None] | None = None
        self._error: HttpLoadError | None = None

    @classmethod
    async def connect(cls, url: str, path: str) -> "RecordStream":
        """Connect, and send the head of the request."""
        parts = urlsplit(url)
        assert parts.hostname is not None, "URLs here name their host"
        assert parts.port is not None, "and port"
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(cls, parts.hostname, parts.port)
        lines = (
            f"POST {path} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Content-Type: application/json",
            "Transfer-Encoding: chunked",
        )
        stream._write("\r\n".join([*lines, "", ""]).encode())
        return stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; asyncio calls this. The window, not the transport, bounds the data in flight."""
        # uvloop's transports have the methods of ``asyncio.Transport`` and are no subclass.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Fail the pending wait; asyncio calls this."""
        self._fail(f"the server closed the connection: {exc or 'no reason given'}")

    def data_received(self, data: bytes) -> None:
        """Count receipts; asyncio calls this."""
        if _REFUSAL in data:
            self._fail(f"a record was refused: {data[:600]!r}")
            return
        self._receipt_count += self._receipts.feed(data)
        if self._receipt_count >= self._wanted:
            self._wake()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def send_for(self, seconds: float, size: int) -> int:
        """Send records of ``size`` bytes for ``seconds``; return how many, when each has a receipt.

        Raises:
            HttpLoadError: a record got no receipt, or none came for half a minute.
        """
        chunk = chunk_of(record_of(size) * RECORDS_PER_CHUNK)
        ends_s = perf_counter() + seconds
        sent = 0
        while perf_counter() < ends_s:
            await self._until(sent + RECORDS_PER_CHUNK - IN_FLIGHT_MAX)
            chunks = (IN_FLIGHT_MAX - (sent - self._receipt_count)) // RECORDS_PER_CHUNK
            self._write(chunk * chunks)
            sent += chunks * RECORDS_PER_CHUNK
        await self._until(sent)
        return sent

    async def _until(self, receipt_count: int) -> None:
        while self._error is None and self._receipt_count < receipt_count:
            self._wanted = receipt_count
            self._reached = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(_WAIT_S):
                    await self._reached
            except TimeoutError:
                self._fail(f"{receipt_count - self._receipt_count} receipts did not come")
        if self._error is not None:
            raise self._error

    def _write(self, data: bytes) -> None:
        assert self._transport is not None, "it is connected"
        self._transport.write(data)

    def _wake(self) -> None:
        if self._reached is not None and not self._reached.done():
            self._reached.set_result(None)

    def _fail(self, message: str) -> None:
        self._error = self._error or HttpLoadError(message)
        self._wake()
