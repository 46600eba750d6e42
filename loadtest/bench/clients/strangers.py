"""Clients that guess passwords, each a new wrong one, until they are killed: ``URL RATE guesses``.

``URL RATE probes`` sends liveness probes at the same rate. They need no credentials, and show the cost of as many
requests without an authentication.

The measurement needs a constant rate. A request is sent when it is due, by a client without a pending response, even
if other clients wait long. If all clients wait when a request is due, or responses stop, the program ends with a
message.
"""

import asyncio
import base64
import sys
from collections import deque
from itertools import count

import uvloop

from loadtest.bench.clients.http_load import (
    HttpLoadError,
    LoadConnection,
    body_length,
    encode_request,
    host_and_port,
)
from loadtest.cluster.node_process import die_with_parent

CONNECTIONS = 800
"""The number of clients. A node delays each guess by half a second, and up to 64 passwords are checked before it."""
HOSTS = 200
"""The number of loopback addresses to send from, so that a node sees as many clients."""
LAG_S_MAX = 0.5
"""The largest delay behind the schedule, in s; with more, the rate is not the requested one."""
GUESSES, PROBES = "guesses", "probes"
READY = "ready"
"""The line that the program prints when all clients are connected."""
_STEP_S = 0.005


class Stranger(LoadConnection, asyncio.Protocol):
    """A client that waits for each response and ignores it. It costs as little CPU as possible."""

    def __init__(self, idle: "deque[Stranger]") -> None:
        self._idle = idle
        self._got = b""
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and be idle; asyncio calls this."""
        super().connection_made(transport)
        self._idle.append(self)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a response; a complete response makes the client idle. asyncio calls this."""
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        if end and len(body) >= (body_length(head) or 0):
            self._got = b""
            self._idle.append(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Handle the end of the connection; asyncio calls this."""
        self.is_lost = True


async def connect(url: str) -> "deque[Stranger]":
    """Return all clients, connected and without a pending response."""
    place, idle = host_and_port(url), deque[Stranger]()
    for number in range(CONNECTIONS):
        await asyncio.get_running_loop().create_connection(
            lambda: Stranger(idle),
            *place,
            local_addr=(f"127.0.0.{2 + number % HOSTS}", 0),
        )
    return idle


async def knock(idle: "deque[Stranger]", url: str, rate: float, *, is_guessing: bool) -> None:
    """Send ``rate`` requests a second through all clients together.

    Raises:
        HttpLoadError: the rate cannot be kept.
    """
    clock = asyncio.get_running_loop().time
    probe = encode_request(url, "GET", "/livez")
    began_s = clock()
    for turn in count():
        due_s = began_s + turn / rate
        while not idle or clock() < due_s:
            await asyncio.sleep(_STEP_S)
            if clock() - due_s > LAG_S_MAX:
                raise HttpLoadError(
                    f"{turn} requests of {rate:g} a second are late, and {len(idle)} wait for nothing"
                )
        stranger = idle.popleft()
        if stranger.is_lost:
            raise HttpLoadError("the node closed a connection")
        stranger.write(_guess(url, str(turn)) if is_guessing else probe)


def _guess(url: str, password: str) -> bytes:
    given = base64.b64encode(f"admin:guess {password}".encode()).decode()
    return encode_request(url, "GET", "/topics", Authorization=f"Basic {given}")


async def _knock_all(url: str, rate: float, *, is_guessing: bool) -> None:
    idle = await connect(url)
    # The parent starts to measure after this line.
    print(READY, flush=True)
    await knock(idle, url, rate, is_guessing=is_guessing)


def main() -> None:
    """Send requests until killed."""
    die_with_parent()
    url, rate, what = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_knock_all(url, float(rate), is_guessing=what == GUESSES))
        except HttpLoadError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
