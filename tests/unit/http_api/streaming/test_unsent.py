"""Clients that do not take their answers: for how long, and how much of it."""

import asyncio
import select
import socket

import pytest

from http_api.ports.node import ApiLimits
from http_api.streaming.unsent import UnsentAnswers, taken_bytes
from tests.support.http.api_server import EVENTS, NDJSON, serving
from tests.support.time.virtual_time import virtual

WAIT_MS = 60_000


class Client:
    def __init__(self, unsent, size=100):
        self.unsent, self.size, self.taken, self.is_open = unsent, size, 0, True
        unsent.add(self)

    def unsent_bytes(self):
        return self.size

    def taken_bytes(self):
        return self.taken

    def take(self, size):
        self.size -= size
        self.taken += size

    def give_up(self):
        self.is_open = False


@virtual
async def test_who_takes_nothing_is_given_up_and_who_takes_little_is_not():
    unsent = UnsentAnswers(bytes_max=1 << 20, wait_ms_max=WAIT_MS)
    idle, slow = Client(unsent), Client(unsent)
    for _ in range(5):
        await asyncio.sleep(29)
        slow.take(1)
    assert (idle.is_open, slow.is_open) == (False, True)
    assert len(unsent) == unsent.given_up_count == 1
    await asyncio.sleep(100)
    assert not slow.is_open
    assert not len(unsent)


@virtual
async def test_who_keeps_up_again_has_all_its_time_the_next_time():
    unsent = UnsentAnswers(bytes_max=1 << 20, wait_ms_max=WAIT_MS)
    client = Client(unsent)
    for _ in range(10):
        await asyncio.sleep(45)
        unsent.discard(client)
        unsent.add(client)
    assert client.is_open
    unsent.discard(client)
    unsent.discard(client)
    await asyncio.sleep(1000)
    assert client.is_open


@virtual
async def test_above_the_bound_who_took_nothing_for_longest_makes_room():
    unsent = UnsentAnswers(bytes_max=1000, wait_ms_max=WAIT_MS)
    first, second = Client(unsent, 400), Client(unsent, 600)
    await asyncio.sleep(1)
    first.take(1)
    third = Client(unsent, 500)
    assert [first.is_open, second.is_open, third.is_open] == [True, False, True]
    first.take(399)
    fourth = Client(unsent, 500)
    assert [first.is_open, third.is_open, fourth.is_open] == [True, True, True]
    unsent.discard(first)
    alone = UnsentAnswers(bytes_max=1000, wait_ms_max=WAIT_MS)
    assert Client(alone, 5000).is_open, "one answer may be larger than all may be together"


async def test_a_pair_of_sockets_knows_what_was_taken():
    """On a transport without TCP what is left says whether something went away."""
    ours, theirs = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    try:
        transport.write(bytes(4 << 20))
        before = taken_bytes(transport)
        assert before == -transport.get_write_buffer_size() < 0
    finally:
        transport.abort()
        theirs.close()


@pytest.mark.parametrize("type_", [NDJSON, EVENTS, "application/vnd.kafka.json.v2+json"])
async def test_a_client_that_reads_nothing_keeps_neither_memory_nor_a_place(type_):
    limits = ApiLimits(unsent_wait_ms_max=200)
    async with serving(limits=limits) as api:
        api.node.add_topic("t")
        value = "x" * 60_000
        for _ in range(100):
            assert (await api.produce("t", [{"value": value}] * 5)).status == 200
        host, _, port = api.base_url.removeprefix("http://").partition(":")
        made = socket.socket()
        # Small, so that the answer does not disappear in it.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect((host, int(port)))
        path = "/topics/t/partitions/0/records?max_bytes=50000000"
        made.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {type_}\r\n\r\n".encode())
        poll = select.poll()
        poll.register(made, 0)
        try:
            ((_, seen),) = await asyncio.to_thread(poll.poll, 30_000)
            assert seen & select.POLLERR, "the connection was reset"
        finally:
            made.close()
