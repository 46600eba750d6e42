"""From batch to batch, without a cluster and without a clock: when there is an offset, and which."""

import asyncio
import logging

import pytest

from milena.records import TopicPartition
from spark_ext.cluster.ends import PartitionEnds
from spark_ext.errors import DataLossError, OffsetError
from spark_ext.options.parsing import parse_stream_options
from spark_ext.streaming.offsets import initial_symbol, parse_offset, ranges_between
from spark_ext.streaming.plan import Sighting
from spark_ext.streaming.progress import POLL_MS, Admission, StreamProgress
from tests.support.time.fake_clock import FakeClock

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ALL = Admission()


class FakeWatch:
    """A cluster that a test writes: ``ends`` are (log start, high watermark) by partition."""

    def __init__(self, clock, ends):
        self.clock = clock
        self.ends = ends
        self.ids = {"t": "1"}
        self.times = {}
        self.sizes = {}
        self.looks = 0
        self.waits = []
        self.news = asyncio.Event()
        self.on_stale = lambda: None

    async def look(self, known=()):
        self.looks += 1
        return Sighting(
            ends={
                p: PartitionEnds(log_start_offset=a, high_watermark=b)
                for p, (a, b) in self.ends.items()
            },
            topic_ids={p.topic: self.ids[p.topic] for p in self.ends},
        )

    async def offsets_at(self, queries):
        return [self.times[query] for query in queries]

    async def record_bytes(self, places):
        return [self.sizes[partition] for partition, _ in places]

    async def wait(self, timeout_ms):
        self.waits.append(timeout_ms)
        self.clock.jump(timeout_ms)

    def mark_stale(self):
        self.on_stale()


class Stream:
    """One run; ``checkpoint`` is the last offset."""

    def __init__(self, ends, checkpoint=None, **given):
        self.options = parse_stream_options({"url": "a", "subscribe": "t", **given})
        self.clock = FakeClock()
        self.watch = FakeWatch(self.clock, ends)
        self.progress = StreamProgress(self.options, self.watch, self.clock)
        self.offset = checkpoint or initial_symbol(self.options.read.start)

    async def latest(self, admission=ALL):
        asked = asyncio.create_task(self.progress.latest(self.offset, admission))
        while not asked.done():
            await self.clock.advance(10)
        return await asked

    async def batch(self, admission=ALL):
        """The ranges of the next batch, by partition; None when there is none."""
        end = await self.latest(admission)
        if end == self.offset:
            return None
        ranges = ranges_between(parse_offset(self.offset), parse_offset(end))
        self.offset = end
        return {r.partition: (r.start, r.end) for r in ranges}


# -- the start -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({}, 9),
        ({"startingOffsets": "earliest"}, 2),
        ({"startingOffsets": '{"t":{"0":4}}'}, 4),
        ({"startingOffsets": '{"t":{"0":-1}}'}, 9),
        ({"startingTimestamp": "50"}, 6),
    ],
)
async def test_batch_0_begins_where_the_options_say(given, start):
    stream = Stream({T0: (2, 9)}, **given)
    stream.watch.times[T0, 50] = 6
    assert await stream.batch() == {T0: (start, 9)}


async def test_a_start_is_resolved_once():
    stream = Stream({T0: (0, 9)})
    assert await stream.batch() == {T0: (9, 9)}
    stream.watch.ends = {T0: (0, 12)}
    assert await stream.batch() == {T0: (9, 12)}


async def test_a_time_that_has_no_record_yet_is_an_error_or_the_end():
    stream = Stream({T0: (0, 9)}, startingTimestamp="50")
    stream.watch.times[T0, 50] = None
    with pytest.raises(OffsetError, match="t-0: no record is at or after the starting time"):
        await stream.batch()
    lenient = {"startingTimestamp": "50", "startingOffsetsByTimestampStrategy": "latest"}
    stream = Stream({T0: (0, 9)}, **lenient)
    stream.watch.times[T0, 50] = None
    assert await stream.batch() == {T0: (9, 9)}


async def test_a_topic_that_is_named_must_exist_at_the_start():
    with pytest.raises(OffsetError, match="no such topic: t"):
        await Stream({}, failOnDataLoss="false").batch()


async def test_offsets_that_are_gone_at_the_start_are_lost_data(caplog):
    named = {"startingOffsets": '{"t":{"0":1}}'}
    with pytest.raises(DataLossError, match="offset 1 is gone"):
        await Stream({T0: (2, 9)}, **named).batch()
    assert await Stream({T0: (2, 9)}, failOnDataLoss="false", **named).batch() == {T0: (2, 9)}
    assert "offset 1 is gone" in caplog.text


# -- idle ------------------------------------------------------------------------------------------


async def test_nothing_new_is_the_start_itself_after_a_second_of_waiting():
    stream = Stream({T0: (0, 9)})
    await stream.batch()
    before = stream.clock.now_ms()
    assert await stream.latest() == stream.offset
    assert stream.watch.waits == [POLL_MS]
    assert stream.clock.now_ms() - before < POLL_MS + 100


async def test_news_are_an_offset_at_once():
    stream = Stream({T0: (0, 9)})
    await stream.batch()
    stream.watch.ends = {T0: (0, 10)}
    assert await stream.batch() == {T0: (9, 10)}
    assert stream.watch.waits == []


async def test_the_ends_last_seen_are_reported():
    stream = Stream({T0: (0, 9)}, startingOffsets="earliest")
    assert stream.progress.report() is None
    await stream.batch(Admission(offsets_max=3))
    assert stream.progress.report()["topics"] == {"t": {"partitions": {"0": {"next": 9}}}}


# -- limits ----------------------------------------------------------------------------------------


async def test_a_limit_is_kept_in_every_batch():
    stream = Stream({T0: (0, 9), T1: (0, 1)}, startingOffsets="earliest")
    limit = Admission(offsets_max=5)
    assert await stream.batch(limit) == {T0: (0, 4), T1: (0, 1)}
    assert await stream.batch(limit) == {T0: (4, 9), T1: (1, 1)}
    assert await stream.batch(limit) is None


async def test_a_limit_in_bytes_is_kept_by_what_records_take_where_the_batch_begins():
    stream = Stream({T0: (0, 90), T1: (0, 10)}, startingOffsets="earliest")
    limit = Admission(bytes_max=1_000)
    stream.watch.sizes = {T0: 10, T1: 110}
    assert await stream.batch(limit) == {T0: (0, 44), T1: (0, 6)}
    stream.watch.sizes = {T0: 50, T1: 50}
    assert await stream.batch(limit) == {T0: (44, 61), T1: (6, 9)}
    both = Admission(bytes_max=1_000, offsets_max=3)
    assert await stream.batch(both) == {T0: (61, 63), T1: (9, 10)}
    assert await stream.batch(Admission(bytes_max=1)) == {T0: (63, 64), T1: (10, 10)}


async def test_a_batch_waits_for_enough_but_not_for_ever():
    stream = Stream({T0: (0, 2)}, startingOffsets="earliest", maxTriggerDelay="3s")
    limit = Admission(offsets_min=5)
    assert await stream.batch(limit) == {T0: (0, 2)}, "the first of a run does not wait"
    stream.watch.ends = {T0: (0, 6)}
    assert await stream.batch(limit) is None
    stream.watch.ends = {T0: (0, 7)}
    assert await stream.batch(limit) == {T0: (2, 7)}
    stream.watch.ends = {T0: (0, 8)}
    asked = 0
    while (found := await stream.batch(limit)) is None:
        asked += 1
    assert found == {T0: (7, 8)}
    assert asked == 2
    assert stream.watch.waits == [], "what trickles in is not watched"


async def test_a_delay_that_is_over_makes_no_empty_batch():
    stream = Stream({T0: (0, 2)}, startingOffsets="earliest", maxTriggerDelay="1s")
    limit = Admission(offsets_min=5)
    await stream.batch(limit)
    stream.clock.jump(5_000)
    assert await stream.batch(limit) is None


async def test_available_now_ends_where_it_began_however_much_comes_meanwhile():
    stream = Stream({T0: (0, 5)}, startingOffsets="earliest")
    await stream.progress.pin()
    stream.watch.ends = {T0: (0, 50), T1: (0, 7)}
    limit = Admission(offsets_max=3, offsets_min=3)
    assert await stream.batch(limit) == {T0: (0, 3)}
    assert await stream.batch(limit) == {T0: (3, 5)}
    before = stream.clock.now_ms()
    assert await stream.batch(limit) is None
    assert stream.clock.now_ms() - before < 100, "nothing is waited for"


# -- what changes under it -------------------------------------------------------------------------


async def test_partitions_that_come_are_read_from_their_first_record():
    stream = Stream({T0: (0, 5)})
    await stream.batch()
    stream.watch.ends = {T0: (0, 5), T1: (0, 7)}
    assert await stream.batch() == {T0: (5, 5), T1: (0, 7)}
    assert await stream.batch() is None


async def checkpointed(**given):
    """A stream whose partition ended at 5, and was read so far."""
    stream = Stream({T0: (0, 5)}, startingOffsets="earliest", **given)
    await stream.batch()
    return stream


async def test_records_that_retention_took_end_the_stream_or_are_passed_over(caplog):
    stream = await checkpointed()
    stream.watch.ends = {T0: (7, 9)}
    with pytest.raises(DataLossError, match=r"offset 5 is gone.*set failOnDataLoss to false"):
        await stream.batch()
    stream = await checkpointed(failOnDataLoss="false")
    stream.watch.ends = {T0: (7, 9)}
    assert await stream.batch() == {T0: (7, 9)}
    assert "offset 5 is gone" in caplog.text


@pytest.mark.parametrize(
    ("ends", "topic_id", "words", "ranges"),
    [
        ({T0: (0, 2)}, "2", "topic t was deleted and made again", {T0: (0, 2)}),
        ({T0: (0, 2)}, "1", "offset 5 does not exist, the end is 2", {T0: (2, 2)}),
        ({}, "1", "topic t was deleted", {}),
    ],
)
async def test_what_a_node_that_is_behind_might_say_is_looked_at_again(
    ends, topic_id, words, ranges, caplog
):
    caplog.set_level(logging.WARNING)
    stream = await checkpointed()
    stream.watch.ends, stream.watch.ids = ends, {"t": topic_id}

    def catch_up():
        stream.watch.ends, stream.watch.ids = {T0: (0, 6)}, {"t": "1"}

    stream.watch.on_stale = catch_up
    assert await stream.batch() == {T0: (5, 6)}

    stream = await checkpointed()
    stream.watch.ends, stream.watch.ids = ends, {"t": topic_id}
    with pytest.raises(DataLossError, match=words):
        await stream.batch()

    stream = await checkpointed(failOnDataLoss="false")
    stream.watch.ends, stream.watch.ids = ends, {"t": topic_id}
    assert caplog.text == ""
    assert await stream.batch() == ranges
    assert words in caplog.text


async def test_a_topic_that_stays_away_is_told_once_and_waited_for(caplog):
    stream = await checkpointed(failOnDataLoss="false")
    stream.watch.ends = {}
    assert await stream.batch() == {}
    await stream.batch()
    caplog.clear()
    looks = stream.watch.looks
    assert await stream.batch() is None
    assert caplog.text == ""
    assert stream.watch.looks - looks == 2, "before and after the wait, without doubts"
    stream.watch.ends, stream.watch.ids = {T0: (0, 3)}, {"t": "2"}
    assert await stream.batch() == {T0: (0, 3)}


async def test_a_restart_goes_on_at_the_checkpoint_whatever_the_start_says():
    stream = await checkpointed()
    later = Stream({T0: (0, 8)}, checkpoint=stream.offset, startingOffsets="latest")
    assert await later.batch() == {T0: (5, 8)}


async def test_a_checkpoint_of_another_release_is_one_line():
    stream = Stream({T0: (0, 8)}, checkpoint={"version": 7})
    with pytest.raises(OffsetError, match="offsets of version 7; this release reads 1"):
        await stream.batch()
