"""A greedy client: waits for records at the end of a topic over as many connections as it likes, until it is killed.

``URL TOKEN TOPIC CONNECTIONS``. Each connection asks again as soon as it has its answer, or, where it is told that
there is no room, once it has waited as long as it was told: it takes what it is given, and all that it is given.
"""

import asyncio
import sys
from urllib.parse import urlsplit

import uvloop

from loadtest.bench.clients.http_load import encode_request
from loadtest.cluster.node_process import die_with_parent

WAIT_MS = 1_000
"""Each place is held for so long at a time."""
SPREAD_S = 1.0
"""Between its first connection and its last."""


async def wait_for_records(url: str, request: bytes, delay_s: float) -> None:
    """Run one connection that starts after a delay: all at once would be a burst, which is not measured here."""
    await asyncio.sleep(delay_s)
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    while True:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        at = head.index(b"content-length: ") + 16
        await reader.readexactly(int(head[at:].split(b"\r", 1)[0]))
        _, found, after = head.partition(b"\r\nretry-after: ")
        if found:
            await asyncio.sleep(int(after.split(b"\r", 1)[0]))


def waiting_request(url: str, token: str, topic: str) -> bytes:
    """Return the request that each greedy client sends."""
    path = f"/topics/{topic}/partitions/0/records?offset=latest&timeout={WAIT_MS}"
    return encode_request(url, "GET", path, Authorization=f"Bearer {token}")


async def wait_on_all(url: str, token: str, topic: str, connections: int) -> None:
    """Run all connections together."""
    request = waiting_request(url, token, topic)
    delays_s = [number / connections * SPREAD_S for number in range(connections)]
    await asyncio.gather(*(wait_for_records(url, request, delay_s) for delay_s in delays_s))


def main() -> None:
    """Take what there is until killed."""
    die_with_parent()
    url, token, topic, connections = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(wait_on_all(url, token, topic, int(connections)))


if __name__ == "__main__":
    main()
