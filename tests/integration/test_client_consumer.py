"""The client's consumer on three real nodes: members that share, one that dies, a coordinator and a leader that die."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from milena import Client, StartAt, TimestampMs
from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    eventually,
    ok,
    running_cluster,
    wait_ready,
)

pytestmark = pytest.mark.integration

DEADLINE_S = 60
SESSION_MS = 2_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("consumer")) as found:
        yield found


async def write(client, topic, values):
    async with client.producer() as producer:
        for value in values:
            await producer.send(topic, str(value))


async def lags_of(client, group):
    return await client.admin.group_lags(await client.admin.group(group))


class Member:
    """A consumer and the task that polls it; ``values`` is everything that it was given."""

    def __init__(self, client, topic, group, **options):
        self.values = []
        self.consumer = client.consumer(
            topic,
            group=group,
            session_timeout_ms=SESSION_MS,
            auto_commit_interval_ms=200,
            **options,
        )
        self.task = None

    async def run(self):
        while True:
            self.values += [int(record.value) for record in await self.consumer.poll(50)]

    @asynccontextmanager
    async def running(self):
        async with self.consumer:
            self.task = asyncio.create_task(self.run())
            try:
                yield self
            finally:
                self.task.cancel()
                await asyncio.wait({self.task})

    async def die(self):
        """As by kill -9: no word to the group, no commit."""
        for task in (self.task, self.consumer.active.link._task, self.consumer._background):
            task.cancel()
            await asyncio.wait({task})


async def until(condition):
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


async def test_two_members_share_one_dies_and_nothing_is_lost(cluster):
    topic = create_topic(cluster.node(1), "shared", partitions=4)
    async with Client([node.url for node in cluster.nodes]) as client:
        one, two = Member(client, topic, "sharing"), Member(client, topic, "sharing")
        async with one.running():
            await until(lambda: len(one.consumer.assignment) == 4)
            async with two.running():
                await until(
                    lambda: len(one.consumer.assignment) == len(two.consumer.assignment) == 2
                )
                assert not one.consumer.assignment & two.consumer.assignment
                await write(client, topic, range(2_000))
                await until(lambda: {*one.values, *two.values} == {*range(2_000)})
                await two.die()
                await write(client, topic, range(2_000, 3_000))
                await until(lambda: {*one.values, *two.values} == {*range(3_000)})
                await until(lambda: len(one.consumer.assignment) == 4)
                # The records that the dead member read without a commit are read and committed again.
                async with asyncio.timeout(DEADLINE_S):
                    while len(await lags_of(client, "sharing")) < 4:
                        await asyncio.sleep(0.02)
        group = await client.admin.group("sharing")
        assert group.members == ()
        lags = await client.admin.group_lags(group)
        assert [row.lag for row in lags] == [0, 0, 0, 0]


async def test_a_node_that_dies_under_a_group_loses_nothing(cluster):
    """The group's coordinator, which leads one of the three partitions as well."""
    topic = create_topic(cluster.node(1), "under-fire", partitions=3)
    async with Client([node.url for node in cluster.nodes]) as client:
        one, two = Member(client, topic, "under-fire"), Member(client, topic, "under-fire")
        async with one.running(), two.running():
            await until(lambda: len(one.consumer.assignment | two.consumer.assignment) == 3)
            await write(client, topic, range(500))
            coordinator = (await client.admin.group("under-fire")).summary.coordinator
            victim = cluster.node(coordinator)
            victim.process.kill()
            await write(client, topic, range(500, 1_000))
            await until(lambda: {*one.values, *two.values} == {*range(1_000)})
        lags = await client.admin.group_lags(await client.admin.group("under-fire"))
        assert [row.lag for row in lags] == [0, 0, 0]
    # From this thread: a node ends with the thread that started it.
    victim.process.start()
    await asyncio.to_thread(wait_ready, cluster, victim)


async def polled(consumer, count):
    """So many records, by as many polls as it takes: one gives what is there."""
    found = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found += await consumer.poll(count - len(found))
    return found


async def test_positions_of_a_group_outlive_its_members(cluster):
    topic = create_topic(cluster.node(1), "positions", partitions=1)
    async with Client(cluster.node(2).url) as client:
        await write(client, topic, range(10))
        async with client.consumer(topic, group="p") as consumer:
            assert len(await polled(consumer, 4)) == 4
            assert await consumer.lag(topic, 0) == 6
        async with client.consumer(topic, group="p") as consumer:
            assert [int(r.value) for r in await polled(consumer, 1)] == [4]
            assert await consumer.committed(topic, 0) == 4
            await consumer.commit()
            assert await consumer.committed(topic, 0) == 5
            first = await polled(consumer, 1)
            consumer.seek(topic, 0, TimestampMs(first[0].timestamp_ms))
            assert (await polled(consumer, 1))[0].offset <= first[0].offset
            consumer.seek(topic, 0, StartAt.LATEST)
            assert await consumer.position(topic, 0) == 10
        found = await client.admin.reset_group("p", topic, 3)
        assert [*found.values()] == [3]
        async with client.consumer(topic, group="p") as consumer:
            assert [int(r.value) for r in await polled(consumer, 1)] == [3]
        await client.admin.delete_group("p")
        # From this thread: nothing of the client has to go on.
        eventually(lambda: call(cluster.node(1), "GET /groups/p").status == 404)


async def test_a_pattern_and_added_partitions_are_noticed(cluster):
    create_topic(cluster.node(1), "logs-a", partitions=1)
    async with Client(cluster.node(3).url, metadata_max_age_ms=500) as client:
        member = Member(client, "logs-a", "patterns")
        member.consumer = client.consumer(pattern="logs-.*", group="patterns")
        async with member.running():
            await until(lambda: len(member.consumer.assignment) == 1)
            create_topic(cluster.node(1), "logs-b", partitions=2)
            await until(lambda: len(member.consumer.assignment) == 3)
            await client.admin.add_partitions("logs-a", 3)
            await until(lambda: len(member.consumer.assignment) == 5)
            await write(client, "logs-b", range(5))
            await until(lambda: sorted(member.values) == [*range(5)])
    ok(call(cluster.node(1), "GET /groups/patterns"))
