"""Consuming with the client: it pulls from where it likes, and goes back whenever it likes."""

import asyncio

import pytest

from milena.client import Client
from milena.records import LastN, StartAt, TimestampMs
from tests.support.clusters.live_cluster import (
    BASE_TIMESTAMP_MS,
    create_topic,
    encoded,
    end_offset,
    ok,
    read,
    write_batch,
)

pytestmark = pytest.mark.integration


def fill(cluster, topic, first, count, *, per_batch):
    for start in range(first, first + count, per_batch):
        numbers = range(start, min(start + per_batch, first + count))
        ok(write_batch(cluster.node(1), topic, encoded(*(b"%d" % n for n in numbers))))


async def numbers(client, topic, **options):
    async with client.reader(topic, 0, **options) as reader:
        return [int(record.value) async for record in reader]


async def test_a_reader_pulls_from_an_offset_as_many_bytes_as_it_likes(cluster):
    """Whatever the bytes of a request, the next one carries the next offset: nothing is missing, nothing doubled."""
    topic = await asyncio.to_thread(create_topic, cluster.node(1), "client-pull")
    await asyncio.to_thread(fill, cluster, topic, 0, 300, per_batch=10)
    async with Client([node.url for node in cluster.nodes]) as client:
        for max_bytes, chunks in ((1, 30), (500, 30), (1 << 20, 1)):
            async with client.reader(topic, 0, max_bytes=max_bytes) as reader:
                found = [(c.start_offset, c.next_offset) async for c in reader.chunks()]
            assert found[0][0] == 0
            assert found[-1][1] == 300
            assert [start for start, _ in found[1:]] == [next_ for _, next_ in found[:-1]]
            assert len(found) <= chunks
            assert (len(found) == 1) == (chunks == 1), "a request holds no more than it asks for"
            assert await numbers(client, topic, max_bytes=max_bytes) == list(range(300))


async def test_a_reader_fetches_a_bounded_part_ahead_and_no_more(cluster):
    """Pull, not push: who does not read on is not sent anything."""
    topic = await asyncio.to_thread(create_topic, cluster.node(1), "client-ahead")
    await asyncio.to_thread(fill, cluster, topic, 0, 100, per_batch=1)
    async with (
        Client(cluster.node(1).url) as client,
        client.reader(topic, 0, max_bytes=1, prefetch_chunks=3) as reader,
    ):
        first = await anext(reader)
        assert (first.offset, reader.next_offset) == (0, 1)
        assert [int(r.value) async for r in reader] == list(range(1, 100))


async def test_a_reader_waits_for_what_is_not_there_yet(cluster):
    """A pull may wait: it is answered by the next record."""
    topic = await asyncio.to_thread(create_topic, cluster.node(1), "client-wait")
    async with (
        Client(cluster.node(2).url) as client,
        client.reader(topic, 0, start=StartAt.LATEST, follow=True) as reader,
    ):
        for number in range(5):
            waiting = asyncio.ensure_future(anext(reader))
            await asyncio.to_thread(fill, cluster, topic, number, 1, per_batch=1)
            record = await waiting
            assert (record.offset, record.value) == (number, b"%d" % number)


async def test_a_reader_may_go_back_and_replay_from_any_offset_or_time(cluster):
    """Whoever was wrong reads again; whoever joins late reads from the beginning; nothing is used up."""
    topic = await asyncio.to_thread(create_topic, cluster.node(1), "client-replay")
    await asyncio.to_thread(fill, cluster, topic, 0, 50, per_batch=7)
    async with Client(cluster.node(3).url) as client:
        for start, first in (
            (StartAt.EARLIEST, 0),
            (31, 31),
            (LastN(8), 42),
            (TimestampMs(BASE_TIMESTAMP_MS), 0),
            (TimestampMs(BASE_TIMESTAMP_MS + 1), 50),
            (StartAt.LATEST, 50),
            (0, 0),
        ):
            assert await numbers(client, topic, start=start) == list(range(first, 50)), start
        assert await numbers(client, topic, start=10, end=20) == list(range(10, 20))


async def test_readers_do_not_disturb_each_other_and_leave_no_trace(cluster):
    """Each knows its own position; the cluster keeps nothing of them."""
    topic = await asyncio.to_thread(create_topic, cluster.node(1), "client-stateless")
    await asyncio.to_thread(fill, cluster, topic, 0, 60, per_batch=5)
    async with Client(cluster.node(1).url) as client:
        slow, quick = client.reader(topic, 0), client.reader(topic, 0, start=30)
        async with slow, quick:
            found = [
                [int((await anext(slow)).value), int((await anext(quick)).value)] for _ in range(30)
            ]
        assert found == [[n, n + 30] for n in range(30)]
        late = await numbers(client, topic)
    assert late == list(range(60))
    assert await asyncio.to_thread(end_offset, cluster.node(1), topic) == 60
    assert len(ok(await asyncio.to_thread(read, cluster.node(1), topic))) == 60
