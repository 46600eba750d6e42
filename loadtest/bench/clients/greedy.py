"""A greedy client: it waits for records at the end of a topic over many connections, until it is killed.

Arguments: ``URL TOKEN TOPIC CONNECTIONS``. Each connection sends the next request as soon as it has a response. If the
node refuses a request because it is full, the connection first waits for the time in Retry-After. So the client obeys
the node, and takes everything that the node lets it have.
"""

import asyncio
import sys

import uvloop

from loadtest.bench.clients.http_load import body_length, encode_request, host_and_port
from loadtest.cluster.node_process import die_with_parent

WAIT_MS = 1_000
"""How long each request waits for records, in ms."""
SPREAD_S = 1.0
"""The time from the first connection to the last, in s."""


async def wait_for_records(url: str, request: bytes, delay_s: float) -> None:
    """Run one connection that starts after a delay: a burst of connections is not what is measured."""
    await asyncio.sleep(delay_s)
    reader, writer = await asyncio.open_connection(*host_and_port(url))
    while True:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(body_length(head) or 0)
        _, found, after = head.lower().partition(b"\r\nretry-after: ")
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
    """Run until killed."""
    die_with_parent()
    url, token, topic, connections = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(wait_on_all(url, token, topic, int(connections)))


if __name__ == "__main__":
    main()
