"""What a stream asks a cluster, and how often: one that is idle asks next to nothing, and hears of a record at once."""

import asyncio
from types import SimpleNamespace

import pytest

from milena.cluster.transport import FetchAnswer
from milena.cluster.view import ClusterView, NodeView, PartitionView, TopicView
from milena.errors import NotNowError, OutOfRangeError, TargetNotFoundError
from milena.records import StartAt, TopicPartition
from spark_ext.cluster.ends import PartitionEnds
from spark_ext.options.parsing import parse_stream_options
from spark_ext.streaming.watch import SAMPLE_BYTES, WATCHES_MAX, StreamWatch
from tests.support.time.fake_clock import FakeClock

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
RECORD_BYTES = 7


class FakeCluster:
    """Logs by topic, as a client sees them; every request is counted in ``asked``, by what it is."""

    def __init__(self, clock):
        self.clock = clock
        self.logs = {}
        self.ids = {}
        self.is_down = False
        self.asked = []
        self.waiting = {}
        self.metadata = SimpleNamespace(
            view=self.view, topic=self.topic, mark_stale=lambda topic=None: None
        )
        self.transport = SimpleNamespace(fetch=self.fetch)

    def create(self, topic, *ends, topic_id="1"):
        self.logs[topic] = list(ends)
        self.ids[topic] = topic_id

    def append(self, topic, partition, count=1):
        self.logs[topic][partition] += count
        for future in self.waiting.pop((topic, partition), []):
            future.set_result(None)

    def _view_of(self, name):
        partitions = tuple(
            PartitionView(partition=n, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
            for n in range(len(self.logs[name]))
        )
        return TopicView(name=name, partitions=partitions, topic_id=self.ids[name])

    async def view(self):
        node = NodeView(node_id=1, url="http://a:1", rack=None, is_live=True, is_draining=False)
        topics = tuple(self._view_of(name) for name in self.logs)
        return ClusterView(cluster_id="c", version=1, controller_id=1, nodes=(node,), topics=topics)

    async def topic(self, name):
        self.asked.append(name)
        if name not in self.logs:
            raise TargetNotFoundError("no such topic", status=404, error_code=40401)
        return self._view_of(name)

    async def fetch(self, topic, partition, *, offset, max_bytes, wait_ms):
        assert max_bytes == (1 if offset is StartAt.LATEST or wait_ms else SAMPLE_BYTES)
        self.asked.append("end" if offset is StartAt.LATEST else "wait" if wait_ms else "sample")
        if self.is_down:
            raise NotNowError("no leader", status=503, error_code=50301)
        if topic not in self.logs:
            raise TargetNotFoundError("no such topic", status=404, error_code=40401)
        if wait_ms and offset == self.logs[topic][partition]:
            await self._something_new((topic, partition), wait_ms)
        end = self.logs[topic][partition]
        start = end if offset is StartAt.LATEST else offset
        if start > end:
            raise OutOfRangeError("no such offset", status=400, error_code=40002)
        return FetchAnswer(
            data=b"x" * (RECORD_BYTES * (end - start)),
            start_offset=start,
            next_offset=end,
            high_watermark=end,
            log_start_offset=0,
        )

    async def _something_new(self, place, wait_ms):
        news = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(place, []).append(news)
        timer = asyncio.ensure_future(self.clock.sleep(wait_ms))
        try:
            await asyncio.wait({news, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    def taken(self):
        """What was asked since the last call."""
        asked, self.asked = self.asked, []
        return asked


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def cluster(clock):
    return FakeCluster(clock)


@pytest.fixture
async def watching(cluster, clock):
    """``watching(option=...)``: a watch; closed at the end, with nothing left that waits."""
    made = []

    def make(**given):
        options = parse_stream_options({"url": "a", **(given or {"subscribe": "t"})}).read
        made.append(StreamWatch(cluster, options, clock))
        return made[-1]

    yield make
    for watch in made:
        watch.close()
    await clock.settle()


def ends_of(seen):
    return {p: ends.high_watermark for p, ends in seen.ends.items()}


async def test_records_are_as_large_as_the_first_ones_that_are_to_be_read(cluster, watching):
    cluster.create("t", 9, 5)
    places = [(T0, 2), (T1, 5), (T1, 7), (TopicPartition("gone", 0), 0)]
    assert await watching().record_bytes(places) == [RECORD_BYTES, 0, 0, 0]
    assert cluster.taken() == ["sample"] * 4


async def waited(clock, watch, timeout_ms=1_000):
    """How long it waited."""
    task = asyncio.create_task(watch.wait(timeout_ms))
    before = clock.now_ms()
    while not task.done():
        await clock.advance(10)
    return clock.now_ms() - before


async def test_a_look_asks_each_partition_for_its_end(cluster, watching):
    cluster.create("t", 3, 5)
    watch = watching()
    seen = await watch.look()
    assert seen.ends[T0] == PartitionEnds(log_start_offset=0, high_watermark=3)
    assert ends_of(seen) == {T0: 3, TopicPartition("t", 1): 5}
    assert seen.topic_ids == {"t": "1"}
    assert cluster.taken() == ["end", "end"]


async def test_a_pattern_and_assigned_partitions_select(cluster, watching):
    cluster.create("logs-a", 1, 2)
    cluster.create("old-logs-b", 1)
    assert ends_of(await watching(subscribePattern="logs-.").look()) == {
        TopicPartition("logs-a", 0): 1,
        TopicPartition("logs-a", 1): 2,
    }
    assert ends_of(await watching(assign='{"logs-a":[1,7],"x":[0]}').look()) == {
        TopicPartition("logs-a", 1): 2
    }


async def test_who_is_idle_asks_nothing_but_the_fetches_that_wait(cluster, watching, clock):
    cluster.create("t", *[0] * 3)
    watch = watching()
    await watch.look()
    cluster.taken()
    for _ in range(20):
        assert await waited(clock, watch) >= 1_000
        await watch.look()
    asked = cluster.taken()
    assert set(asked) == {"wait"}
    assert len(asked) <= 3 * 20 / 5 + 3


@pytest.mark.parametrize("partitions", [100, WATCHES_MAX + 300])
async def test_many_partitions_that_are_idle_cost_less_than_ten_requests_a_second(
    cluster, watching, clock, partitions
):
    cluster.create("t", *[0] * partitions)
    watch = watching()
    await watch.look()
    cluster.taken()
    waits = asyncio.create_task(watch.wait(300_000))
    await clock.advance(300_000)
    await waits
    assert len(cluster.taken()) / 300 < 10
    assert sum(map(len, cluster.waiting.values())) >= min(partitions, WATCHES_MAX)


async def test_a_record_ends_the_wait_and_only_its_partition_is_asked_again(
    cluster, watching, clock
):
    cluster.create("t", 0, 0, 0)
    watch = watching()
    await watch.look()
    waits = asyncio.create_task(watch.wait(1_000))
    await clock.settle()
    cluster.taken()
    cluster.append("t", 1)
    await clock.settle()
    assert waits.done()
    assert ends_of(await watch.look())["t", 1] == 1
    assert cluster.taken() == ["end"]
    assert await waited(clock, watch) >= 1_000
    assert cluster.taken() == ["wait"]


async def test_what_comes_between_two_waits_is_not_missed(cluster, watching, clock):
    cluster.create("t", 0)
    watch = watching()
    await watch.look()
    await waited(clock, watch)
    cluster.append("t", 0)
    assert ends_of(await watch.look()) == {T0: 0}, "not asked: nobody had said a word yet"
    assert await waited(clock, watch) < 100
    assert ends_of(await watch.look()) == {T0: 1}


async def test_a_node_that_refuses_is_not_asked_in_a_loop(cluster, watching, clock):
    cluster.create("t", 0)
    watch = watching()
    await watch.look()
    cluster.is_down = True
    waits = asyncio.create_task(watch.wait(60_000))
    await clock.advance(900)
    assert not waits.done()
    await clock.advance(200)
    assert waits.done()
    cluster.is_down = False
    cluster.append("t", 0)
    assert ends_of(await watch.look()) == {T0: 1}


async def test_a_topic_that_was_made_again_is_watched_as_another_one(cluster, watching, clock):
    cluster.create("t", 5)
    watch = watching()
    await watch.look()
    await waited(clock, watch)
    cluster.create("t", 2, topic_id="2")
    seen = await watch.look()
    assert (ends_of(seen), seen.topic_ids) == ({T0: 2}, {"t": "2"})


async def test_a_topic_that_went_since_the_metadata_are_from_is_looked_at_again(
    cluster, watching, clock
):
    cluster.create("t", 5)
    old = await cluster.view()
    watch = watching()
    views = iter((old, old))

    async def view():
        found = next(views, None)
        return await FakeCluster.view(cluster) if found is None else found

    cluster.metadata.view = view
    del cluster.logs["t"]
    look = asyncio.create_task(watch.look())
    await clock.advance(1_000)
    assert (await look).ends == {}


async def test_topics_that_are_read_are_asked_for_by_name_before_they_are_gone(cluster, watching):
    watch = watching(subscribePattern="t.*")
    await watch.look()
    assert cluster.taken() == []
    await watch.look(("t2",))
    assert cluster.taken() == ["t2"]


async def test_tasks_may_ask_every_node_that_lives(cluster, watching):
    assert await watching().urls() == ("a", "http://a:1")
