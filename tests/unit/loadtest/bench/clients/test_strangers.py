"""Strangers knock as often as they are told to, or say that they could not."""

import asyncio
from collections import deque

import pytest

from loadtest.bench.clients.http_load import HttpLoadError
from loadtest.bench.clients.strangers import Stranger, knock
from tests.support.time.virtual_time import VirtualLoop

URL = "http://node:1"
ANSWER = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}"


class Node(asyncio.Transport):
    """One connection's node, which answers after a while, in two pieces."""

    def __init__(self, idle: deque[Stranger], waits_s: float, asked: list[bytes]) -> None:
        super().__init__()
        self.waits_s, self.asked = waits_s, asked
        self.stranger = Stranger(idle)
        self.stranger.connection_made(self)

    def write(self, data: bytes) -> None:
        self.asked.append(data)
        asyncio.get_running_loop().call_later(self.waits_s, self.answer)

    def answer(self) -> None:
        self.stranger.data_received(ANSWER[:-1])
        self.stranger.data_received(ANSWER[-1:])


def knocked(connections: int, waits_s: float, *, rate: float = 1000, seconds: float = 10.0):
    """What a node is asked in so many seconds of virtual time."""

    async def run() -> list[bytes]:
        idle, asked = deque[Stranger](), []
        for _ in range(connections):
            Node(idle, waits_s, asked)
        try:
            async with asyncio.timeout(seconds):
                await knock(idle, URL, rate, is_guessing=True)
        except TimeoutError:
            return asked

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def test_the_rate_is_kept_however_long_answers_take():
    for waits_s in (0.0, 0.5):
        asked = knocked(600, waits_s)
        assert 9_980 <= len(asked) <= 10_010
        assert len(set(asked)) == len(asked)


def test_a_rate_that_cannot_be_kept_is_an_error():
    with pytest.raises(HttpLoadError, match="are late"):
        knocked(400, 0.5)


def test_a_connection_that_was_closed_is_an_error():
    async def run() -> None:
        idle = deque[Stranger]()
        Node(idle, 0.0, []).stranger.connection_lost(None)
        await knock(idle, URL, 1.0, is_guessing=False)

    with (
        pytest.raises(HttpLoadError, match="closed a connection"),
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        runner.run(run())
