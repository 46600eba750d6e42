"""Strangers who try passwords, each a wrong one that nobody has tried before: ``URL RATE guesses``, until it is killed.

``URL RATE probes`` asks as often whether the node lives, which needs no credentials: what as many requests cost that
bring nothing.
"""

import asyncio
import base64
import sys
from itertools import count
from time import perf_counter
from urllib.parse import urlsplit

import uvloop

from loadtest.bench.clients.http_load import encode_request
from loadtest.cluster.node_process import die_with_parent

CONNECTIONS = 200
"""More than passwords may wait, so that most are answered at once, and the rate is what it should be."""
HOSTS = 200
"""Of loopback, so that they are as many addresses."""
GUESSES, PROBES = "guesses", "probes"


async def knock(url: str, number: int, gap_s: float, *, is_guessing: bool) -> None:
    """One of them, who waits for each answer; what it is does not matter."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(
        place.hostname, place.port, local_addr=(f"127.0.0.{2 + number % HOSTS}", 0)
    )
    probe = encode_request(url, "GET", "/livez")
    due_s = perf_counter() + gap_s * number / CONNECTIONS
    for turn in count():
        await asyncio.sleep(max(0.0, due_s - perf_counter()))
        due_s += gap_s
        writer.write(_guess(url, f"{number} {turn}") if is_guessing else probe)
        head = await reader.readuntil(b"\r\n\r\n")
        at = head.lower().index(b"content-length: ") + 16
        await reader.readexactly(int(head[at:].split(b"\r", 1)[0]))


def _guess(url: str, password: str) -> bytes:
    given = base64.b64encode(f"admin:guess {password}".encode()).decode()
    return encode_request(url, "GET", "/topics", Authorization=f"Basic {given}")


async def knock_all(url: str, rate: float, *, is_guessing: bool) -> None:
    """All of them together so many times a second."""
    gap_s = CONNECTIONS / rate
    await asyncio.gather(
        *(knock(url, number, gap_s, is_guessing=is_guessing) for number in range(CONNECTIONS))
    )


def main() -> None:
    """Knock until killed."""
    die_with_parent()
    url, rate, what = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(knock_all(url, float(rate), is_guessing=what == GUESSES))


if __name__ == "__main__":
    main()
