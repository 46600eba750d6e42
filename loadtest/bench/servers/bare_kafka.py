"""A minimal listener for Kafka's protocol on the same stack: uvloop reads a frame and sends a short response.

    python -m loadtest.bench.servers.bare_kafka PORT

It shows the most that a Python listener can reach: it checks the checksum of each batch, counts its records, and gives
them offsets. It keeps nothing and has no replicas. Every topic that a client asks for is there, with one partition. It
speaks four requests, in the last versions before the compact encoding.
"""

import asyncio
import sys
from struct import Struct
from typing import cast

import uvloop
from crc32c import crc32c

from loadtest.bench.clients.kafka_wire import KafkaFields, int16, int32, int64, text

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
_VERSIONS = {PRODUCE: 8, FETCH: 11, METADATA: 4, API_VERSIONS: 0}
"""The highest version of each request. Clients ask for the version of Fetch, and do not send it here."""
_NODE = 1
_CORRUPT_MESSAGE, _UNSUPPORTED_VERSION = 2, 35
_HEAD = Struct(">hhi")
_CRC_AT, _CHECKED_AT, _COUNT_AT = 17, 21, 57
_NONE = int64(-1)


class Listener(asyncio.Protocol):
    """One connection. Responses leave in the order of requests, because nothing waits."""

    ends: dict[str, int]
    """The next offset of each topic."""
    port: int

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with an empty buffer."""
        # uvloop's transports are not of this class.
        self._transport = cast("asyncio.Transport", transport)
        self._arrived = bytearray()

    def data_received(self, data: bytes) -> None:
        """Answer all requests that are whole."""
        self._arrived += data
        at, answers = 0, []
        while len(self._arrived) - at >= 4:
            began = at + 4
            end = began + int.from_bytes(self._arrived[at:began], "big")
            if len(self._arrived) < end:
                break
            answers.append(self._answer(memoryview(bytes(self._arrived[began:end]))))
            at = end
        del self._arrived[:at]
        if answers:
            self._transport.writelines(answers)

    def _answer(self, frame: memoryview) -> bytes:
        key, version, correlation = _HEAD.unpack_from(frame)
        request = KafkaFields(frame, _HEAD.size)
        request.text()
        if key == API_VERSIONS:
            body = self._versions(version)
        elif key == METADATA:
            body = self._metadata(request)
        else:
            body = self._produce(request)
        return int32(len(body) + 4) + int32(correlation) + body

    def _versions(self, version: int) -> bytes:
        """Return the versions; a client that asked in a newer one asks again in the first (KIP-511)."""
        body = int16(0 if version == 0 else _UNSUPPORTED_VERSION) + int32(len(_VERSIONS))
        for key, highest in _VERSIONS.items():
            body += int16(key) + int16(0) + int16(highest)
        return body

    def _metadata(self, request: KafkaFields) -> bytes:
        names = [request.text() for _ in range(request.int32())]
        brokers = int32(1) + int32(_NODE) + text("127.0.0.1") + int32(self.port) + int16(-1)
        body = int32(0) + brokers + int16(-1) + int32(_NODE) + int32(len(names))
        nodes = int32(1) + int32(_NODE)
        for name in names:
            body += int16(0) + text(name) + b"\0" + int32(1)
            body += int16(0) + int32(0) + int32(_NODE) + nodes + nodes
        return body

    def _produce(self, request: KafkaFields) -> bytes:
        request.text()
        request.int16()
        request.int32()
        topics = request.int32()
        body = int32(topics)
        for _ in range(topics):
            name, partitions = request.text(), request.int32()
            body += text(name) + int32(partitions)
            for _ in range(partitions):
                partition, batch = request.int32(), request.data()
                code, offset = self._append(name, batch)
                body += int32(partition) + int16(code) + int64(offset) + _NONE + int64(0)
                body += int32(0) + int16(-1)
        return body + int32(0)

    def _append(self, topic: str, batch: bytes | memoryview) -> tuple[int, int]:
        if crc32c(batch[_CHECKED_AT:]) != int.from_bytes(batch[_CRC_AT:_CHECKED_AT], "big"):
            return _CORRUPT_MESSAGE, -1
        count = int.from_bytes(batch[_COUNT_AT : _COUNT_AT + 4], "big")
        offset = self.ends.get(topic, 0)
        self.ends[topic] = offset + count
        return 0, offset


async def _serve(port: int) -> None:
    Listener.ends, Listener.port = {}, port
    await asyncio.get_running_loop().create_server(Listener, "127.0.0.1", port)
    await asyncio.Event().wait()


def main() -> None:
    """Serve until killed."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
