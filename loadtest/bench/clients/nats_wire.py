r"""NATS JetStream over its own wire protocol, with the least work that a client can do.

The comparison is fair only if this client uses no more CPU than NATS's compiled clients. The protocol is text, on one
connection:

    PUB subject reply length\r\npayload\r\n        to the server
    MSG subject sid [reply] length\r\npayload\r\n  from the server: acknowledgements and messages

JetStream's own calls are JSON requests to ``$JS.API.…``.
"""

import asyncio
import json
from contextlib import closing

from loadtest.bench.clients.counted_stream import CountedStream
from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.clients.one_client import OneClient, repeat
from loadtest.bench.measuring.rounds import Turn

STREAM = "bench"
SUBJECT = "bench.a"
_CHUNK = 256
_PULL = 2_000
_PULLS_AT_ONCE = 2
_INBOX = "_INBOX.bench"
_ACK = b'"seq":'
_CALL_S = 20.0
_OPTIONS = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
_HELLO = f"CONNECT {json.dumps(_OPTIONS)}\r\nSUB {_INBOX}.> 1\r\n".encode()
_MARK = b"#bench-message#"
"""The start of each payload, by which messages are counted."""


def payload_of(size: int) -> bytes:
    """Return a message of this many bytes."""
    return _MARK + b"x" * (size - len(_MARK))


class NatsLoad(CountedStream):
    """One connection to one server of a cluster with JetStream."""

    def __init__(self) -> None:
        super().__init__("NATS")
        self._answer = b""
        self._tag: bytes = b""
        self._answered: asyncio.Future[bytes] | None = None
        self._calls = 0

    # -- connection --------------------------------------------------------------------------------

    @classmethod
    async def connect(cls, port: int) -> "NatsLoad":
        """Connect to a server on this machine."""
        _, load = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        load.write(_HELLO)
        return load

    def data_received(self, data: bytes) -> None:
        """Count marks, or find the response of a call; asyncio calls this."""
        if self._counter is not None:
            if b'"error"' in data:
                self.fail(f"NATS refused: {data[:300]!r}")
            self.feed(data)
            return
        self._answer += data
        if self._answer.startswith(b"PING") or b"\r\nPING\r\n" in self._answer:
            self.write(b"PONG\r\n")
            self._answer = self._answer.replace(b"PING\r\n", b"")
        if b"-ERR" in self._answer:
            self.fail(f"NATS refused: {self._answer[:300]!r}")
        self._find_answer()

    def _find_answer(self) -> None:
        """Complete the pending call when its response has arrived: ``MSG inbox.tag 1 length``, and that many bytes."""
        at = self._answer.find(self._tag) if self._tag else -1
        end = self._answer.find(b"\r\n", at)
        if at < 0 or end < 0 or self._answered is None or self._answered.done():
            return
        length = int(self._answer[at:end].split()[-1])
        body = self._answer[end + 2 : end + 2 + length]
        if len(body) == length:
            self._answered.set_result(body)

    def fail(self, message: str) -> None:
        """End the pending wait or call, and all later waits, with an error."""
        super().fail(message)
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(HttpLoadError(message))

    async def call(self, subject: str, body: dict[str, object]) -> dict[str, object]:
        """Make one of JetStream's own calls; return its JSON.

        Raises:
            HttpLoadError: the server refused the call, or did not respond.
        """
        self._counter = None
        self._answer = b""
        self._calls += 1
        inbox = f"{_INBOX}.call.{self._calls}"
        self._tag = f"MSG {inbox} 1 ".encode()
        self._answered = asyncio.get_running_loop().create_future()
        raw = json.dumps(body).encode()
        self.write(f"PUB $JS.API.{subject} {inbox} {len(raw)}\r\n".encode() + raw + b"\r\n")
        try:
            async with asyncio.timeout(_CALL_S):
                answer = json.loads(await self._answered)
        except TimeoutError:
            raise HttpLoadError(f"NATS did not answer {subject}: {self._answer[:300]!r}") from None
        finally:
            self._answered = None
        assert isinstance(answer, dict), "JetStream answers with objects"
        return answer

    # -- what is measured --------------------------------------------------------------------------

    async def create_stream(self, *, replicas: int) -> str:
        """Create an empty stream on disk, after deleting an old one; return the name of the server that leads it.

        Raises:
            HttpLoadError: the stream cannot be created, for example while the cluster has no leader.
        """
        await self.call(f"STREAM.DELETE.{STREAM}", {})
        answer = await self.call(
            f"STREAM.CREATE.{STREAM}",
            {
                "name": STREAM,
                "subjects": [SUBJECT],
                "num_replicas": replicas,
                "storage": "file",
                "retention": "limits",
                "discard": "old",
            },
        )
        if "error" in answer:
            raise HttpLoadError(f"NATS makes no stream: {answer['error']}")
        match answer.get("cluster"):
            case {"leader": str(leader)}:
                return leader
            case _:
                raise HttpLoadError("NATS: the stream has no leader")

    async def publish_many(self, size: int, *, seconds: float | None, count: int | None) -> int:
        """Publish for ``seconds``, or at least ``count`` messages; return how many, when all are acknowledged."""
        payload = payload_of(size)
        message = f"PUB {SUBJECT} {_INBOX}.ack {size}\r\n".encode() + payload + b"\r\n"
        self.begin(_ACK)
        return await self.send(message * _CHUNK, _CHUNK, seconds=seconds, count=count)

    async def create_consumer(self) -> str:
        """Create a consumer that starts at the first message and acknowledges nothing; return its name.

        Raises:
            HttpLoadError: the server did not create it.
        """
        config = {"ack_policy": "none", "deliver_policy": "all", "replay_policy": "instant"}
        answer = await self.call(
            f"CONSUMER.CREATE.{STREAM}", {"stream_name": STREAM, "config": config}
        )
        match answer:
            case {"name": str(name)}:
                return name
            case _:
                raise HttpLoadError(f"NATS makes no consumer: {answer}")

    async def pull(self, consumer: str, count: int) -> int:
        """Get ``count`` messages from a consumer; return ``count``."""
        body = json.dumps({"batch": _PULL, "expires": 30_000_000_000}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{consumer}"
        request = f"PUB {subject} {_INBOX}.pull {len(body)}\r\n".encode() + body + b"\r\n"
        self.begin(_MARK)
        asked = 0
        while asked < count:
            await self.until(asked - (_PULLS_AT_ONCE - 1) * _PULL)
            self.write(request)
            asked += _PULL
        await self.until(count)
        return count


def publish_each(port: int, size: int, seconds: float) -> Turn:
    """Publish messages one after the other for ``seconds`` to a server on this machine; this blocks.

    Raises:
        LoadError, OSError: NATS refused a message, or closed the connection.
    """
    message = f"PUB {SUBJECT} {_INBOX}.ack {size}\r\n".encode() + payload_of(size) + b"\r\n"
    with closing(OneClient(f"127.0.0.1:{port}")) as client:
        client.exchange(_HELLO + b"PING\r\n", lambda answer: b"PONG\r\n" in answer)
        latencies_s, took_s = repeat(lambda: client.exchange(message, _is_acknowledged), seconds)
    return Turn(latencies_s=latencies_s, units=len(latencies_s), seconds=took_s)


def _is_acknowledged(answer: bytes) -> bool:
    if b'"error"' in answer or b"-ERR" in answer:
        raise HttpLoadError(f"NATS refused: {answer[:300]!r}")
    at = answer.find(_ACK)
    # The server may send a PING at any time, so the acknowledgement need not be the last thing in the response.
    return at >= 0 and answer.find(b"}\r\n", at) >= 0
