"""Produce with the v3 API: one long request with one JSON object per record, and a receipt for each record."""

import asyncio
from urllib.parse import urlsplit

from loadtest.bench.clients.counted_stream import CountedStream
from loadtest.bench.clients.http_load import host_and_port

RECORDS_PER_CHUNK = 256
_RECEIPT = b'"error_code":200,'
_REFUSAL = b'"message":'


def record_of(size: int) -> bytes:
    """Return a record whose value has this many bytes, on one line."""
    return b'{"value":{"type":"STRING","data":"' + b"x" * size + b'"}}\n'


def chunk_of(records: bytes) -> bytes:
    """Return records as a chunk of a body of unknown length (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(records), records)


class RecordStream(CountedStream):
    """One request to which records are added until it is closed."""

    def __init__(self) -> None:
        super().__init__("the server")
        self.begin(_RECEIPT)

    @classmethod
    async def connect(cls, url: str, path: str) -> "RecordStream":
        """Connect, and send the head of the request."""
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(cls, *host_and_port(url))
        lines = (
            f"POST {path} HTTP/1.1",
            f"Host: {urlsplit(url).netloc}",
            "Content-Type: application/json",
            "Transfer-Encoding: chunked",
        )
        stream.write("\r\n".join([*lines, "", ""]).encode())
        return stream

    def data_received(self, data: bytes) -> None:
        """Count receipts; asyncio calls this."""
        if _REFUSAL in data:
            self.fail(f"a record was refused: {data[:600]!r}")
        else:
            self.feed(data)

    async def send_for(self, seconds: float, size: int) -> int:
        """Send records of ``size`` bytes for ``seconds``; return how many, when each has a receipt.

        Raises:
            HttpLoadError: a record got no receipt, or none came for half a minute.
        """
        chunk = chunk_of(record_of(size) * RECORDS_PER_CHUNK)
        return await self.send(chunk, RECORDS_PER_CHUNK, seconds=seconds)
