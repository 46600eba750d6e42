"""Consumers against partitions and a group in memory, in virtual time: what is given, committed, given back, lost."""

import asyncio
import functools
import itertools
from contextlib import asynccontextmanager

import pytest

from milena.consuming.active_subscription import ConsumerPorts
from milena.consuming.consumer import Consumer
from milena.consuming.options import ConsumerOptions, RebalanceListener, Subscription
from milena.errors import (
    ClientClosedError,
    CommitFailedError,
    ConsumerFencedError,
    NotNowError,
    StaleMemberError,
    TargetNotFoundError,
    UnreachableError,
    UnreadableOffsetError,
)
from milena.reading.cursor import OnOutOfRange
from milena.records import LastN, StartAt, TopicPartition
from tests.support.fakes.groups import FakeGroup, not_coordinator
from tests.support.fakes.topics import FakeTopics, value_at
from tests.support.time.virtual_time import LoopClock, after, current_loop, settle, virtual

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def within_an_hour(test):
    """In virtual time, and at most an hour of it: who waits for ever fails."""

    @virtual
    @functools.wraps(test)
    async def run(*args, **given):
        async with asyncio.timeout(3_600):
            await test(*args, **given)

    return run


class World:
    """Topics, a group, and consumers of them."""

    def __init__(self, **topics):
        self.topics = FakeTopics(**(topics or {"t": 2}))
        self.group = FakeGroup(**(topics or {"t": 2}))
        self.group.tags = self.topics.tags
        self.ids = itertools.count(1)

    def make_again(self, topic="t"):
        """Delete a topic with its committed offsets, and create it again, before any member hears of it."""
        self.topics.make_again(topic)
        self.group.offsets = {w: n for w, n in self.group.offsets.items() if w.topic != topic}

    def consumer(self, *topics, group="g", **options):
        return Consumer(
            ConsumerOptions(group=group, **options),
            Subscription(topics=topics or ("t",)) if topics != (None,) else None,
            ports=ConsumerPorts(
                calls=self.group, transport=self.topics, metadata=self.topics, clock=LoopClock()
            ),
            new_id=lambda: f"m{next(self.ids)}",
        )


class Heard(RebalanceListener):
    """Writes down what it hears; ``consumer`` is set by the test."""

    def __init__(self):
        self.events = []

    def on_assigned(self, partitions):
        self.events.append(("assigned", sorted(partitions)))

    async def on_revoked(self, partitions):
        await asyncio.sleep(0)
        self.events.append(("revoked", sorted(partitions)))

    async def on_lost(self, partitions):
        self.events.append(("lost", sorted(partitions)))


async def drain(consumer, timeout_s=1.0):
    """Everything that comes until nothing does."""
    found = []
    while records := await consumer.poll(timeout_s=timeout_s):
        found += records
    return found


def places(records):
    for record in records:
        assert record.value == value_at(record.topic, record.partition, record.offset)
    return sorted((r.topic, r.partition, r.offset) for r in records)


@asynccontextmanager
async def polling(consumer):
    """An application that does nothing but poll; gives the list of what it got."""
    found = []

    async def loop():
        while True:
            found.extend(await consumer.poll())

    task = asyncio.create_task(loop())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.wait({task})


# -- reading ---------------------------------------------------------------------------------------


@within_an_hour
async def test_a_lone_member_reads_everything_once_and_in_order():
    world = World()
    world.topics.write("t", 0, 5)
    world.topics.write("t", 1, 7)
    async with world.consumer() as consumer:
        records = await drain(consumer)
        assert consumer.assignment == {T0, T1}
        assert consumer.generation == 1
    assert places(records) == [("t", 0, n) for n in range(5)] + [("t", 1, n) for n in range(7)]
    for partition in (0, 1):
        offsets = [r.offset for r in records if r.partition == partition]
        assert offsets == sorted(offsets)


@within_an_hour
async def test_iterating_gives_the_same_and_goes_on_with_what_comes():
    world = World(t=1)
    world.topics.write("t", 0, 3)
    found = []
    async with world.consumer() as consumer:
        async for record in consumer:
            found.append(record.offset)
            if len(found) == 3:
                world.topics.write("t", 0, 2)
            if len(found) == 5:
                break
    assert found == [0, 1, 2, 3, 4]
    assert world.group.offsets[T0] == 5


@within_an_hour
async def test_poll_gives_no_more_than_asked_and_takes_partitions_in_turn():
    world = World()
    world.topics.write("t", 0, 30)
    world.topics.write("t", 1, 30)
    async with world.consumer(max_poll_records=2) as consumer:
        await consumer.poll()
        assert len(await consumer.poll()) == 2
        assert len(await consumer.poll(1)) == 1
        polls = [await consumer.poll(3) for _ in range(6)]
        assert {r.partition for records in polls for r in records} == {0, 1}
        for odd in (0, "5", 1.5):
            with pytest.raises(ValueError, match=f"max_records={odd!r} must be a whole number"):
                await consumer.poll(odd)


@within_an_hour
async def test_poll_returns_nothing_when_its_time_is_up():
    world = World()
    async with world.consumer() as consumer:
        begun = current_loop().time()
        assert await consumer.poll(timeout_s=2.5) == []
        assert current_loop().time() - begun == pytest.approx(2.5, abs=0.01)
        assert await consumer.poll(timeout_s=0) == []


@within_an_hour
async def test_a_poll_that_is_cancelled_loses_nothing():
    world = World(t=1)
    async with world.consumer() as consumer:
        waiting = asyncio.create_task(consumer.poll())
        await after(50)
        waiting.cancel()
        await asyncio.wait({waiting})
        world.topics.write("t", 0, 3)
        assert [r.offset for r in await drain(consumer)] == [0, 1, 2]


@within_an_hour
async def test_only_one_poll_at_a_time_and_none_once_it_is_closed():
    world = World()
    async with world.consumer() as consumer:
        waiting = asyncio.create_task(consumer.poll())
        await settle()
        with pytest.raises(RuntimeError, match="one poll at a time"):
            await consumer.poll()
    with pytest.raises(ClientClosedError):
        await waiting
    with pytest.raises(ClientClosedError):
        await consumer.poll()
    await consumer.close()


# -- committing ------------------------------------------------------------------------------------


@within_an_hour
async def test_what_was_given_last_is_not_committed_by_itself_until_the_application_comes_back():
    world = World(t=1)
    world.topics.write("t", 0, 6)
    async with world.consumer(auto_commit_interval_ms=100) as consumer:
        assert [r.offset for r in await consumer.poll(2)] == [0, 1]
        await after(1_000)
        assert world.group.offsets.get(T0, 0) == 0
        assert [r.offset for r in await consumer.poll(2)] == [2, 3]
        await after(1_000)
        assert world.group.offsets[T0] == 2


@within_an_hour
async def test_the_record_an_iteration_is_at_is_not_committed_by_itself():
    world = World(t=1)
    world.topics.write("t", 0, 6)
    async with world.consumer(auto_commit_interval_ms=100) as consumer:
        async for record in consumer:
            await after(1_000)
            assert world.group.offsets.get(T0, 0) == record.offset
            if record.offset == 4:
                break
    assert world.group.offsets[T0] == 5


@within_an_hour
async def test_leaving_by_an_error_commits_only_what_was_done_with():
    world = World(t=1)
    world.topics.write("t", 0, 6)

    async def polls_twice():
        async with world.consumer() as consumer:
            await consumer.poll(2)
            await consumer.poll(2)
            raise ZeroDivisionError

    async def iterates_up_to(offset):
        async with world.consumer() as consumer:
            async for record in consumer:
                if record.offset == offset:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await polls_twice()
    assert world.group.offsets[T0] == 2
    with pytest.raises(ZeroDivisionError):
        await iterates_up_to(4)
    assert world.group.offsets[T0] == 4
    async with world.consumer() as consumer:
        assert [r.offset for r in await drain(consumer)] == [4, 5]


@within_an_hour
async def test_a_commit_by_hand_covers_what_was_given_and_nothing_else_commits():
    world = World(t=1)
    world.topics.write("t", 0, 6)
    async with world.consumer(auto_commit=False) as consumer:
        await consumer.poll(2)
        await consumer.commit()
        assert world.group.offsets == {T0: 2}
        assert await consumer.committed("t", 0) == 2
        await consumer.poll(2)
        await consumer.commit({("t", 0): 3})
        async for record in consumer:
            await consumer.commit()
            assert world.group.offsets == {T0: record.offset + 1}
            break
        commits = len(world.group.commits)
        await consumer.commit()
        assert len(world.group.commits) == commits, "nothing new is nothing to say"
        await consumer.poll(1)
    assert world.group.offsets == {T0: 5}


@within_an_hour
async def test_rewound_it_gives_again_what_came_after_the_commit_or_where_it_began():
    """The end, where it began, is another one by now: what was given lies before it."""
    world = World(t=1)
    async with world.consumer(auto_commit=False, start=StartAt.LATEST) as consumer:
        await consumer.rewind()
        assert await consumer.poll(timeout_s=1) == []
        world.topics.write("t", 0, 4)
        assert [r.offset for r in await drain(consumer)] == [0, 1, 2, 3]
        await consumer.rewind()
        assert [r.offset for r in await consumer.poll(2)] == [0, 1]
        await consumer.commit()
        await drain(consumer)
        await consumer.rewind()
        assert [r.offset for r in await drain(consumer)] == [2, 3]


@within_an_hour
async def test_rewound_it_goes_back_to_where_the_application_sent_it():
    world = World(t=1)
    world.topics.write("t", 0, 9)
    async with world.consumer(auto_commit=False) as consumer:
        await consumer.poll(1)
        consumer.seek("t", 0, 5)
        assert [r.offset for r in await consumer.poll(2)] == [5, 6]
        await consumer.rewind()
        assert [r.offset for r in await drain(consumer)] == [5, 6, 7, 8]


@within_an_hour
async def test_positions_that_were_found_out_are_committed_so_that_a_restart_skips_nothing():
    """A consumer that began at the end and saw nothing must not begin at a later end next time."""
    world = World(t=1)
    world.topics.write("t", 0, 4)
    async with world.consumer(start=StartAt.LATEST) as consumer:
        assert await consumer.poll(timeout_s=1) == []
    world.topics.write("t", 0, 2)
    async with world.consumer(start=StartAt.LATEST) as consumer:
        assert [r.offset for r in await drain(consumer)] == [4, 5]


@within_an_hour
async def test_a_commit_is_tried_again_while_there_is_no_coordinator():
    world = World(t=1)
    world.topics.write("t", 0, 2)
    async with world.consumer(auto_commit=False) as consumer:
        await consumer.poll()
        await settle()
        world.group.failures.extend([not_coordinator(), UnreachableError("gone")])
        await consumer.commit()
        assert world.group.offsets[T0] == 2


@within_an_hour
async def test_a_commit_under_the_epoch_before_learns_the_new_one():
    world = World(t=1)
    world.topics.write("t", 0, 2)
    async with world.consumer(auto_commit=False) as consumer:
        await consumer.poll()
        world.group.generation += 1
        world.group.members["m1"].epoch += 1
        await consumer.commit()
        assert world.group.offsets[T0] == 2
        assert consumer.generation == 2


@within_an_hour
async def test_a_commit_of_partitions_that_went_away_fails_and_commits_nothing():
    world = World()
    world.topics.write("t", 0, 2)
    async with world.consumer(auto_commit=False) as consumer:
        await consumer.poll()
        world.group.kick("m1")
        with pytest.raises(CommitFailedError):
            await consumer.commit()
        assert world.group.offsets == {}
        with pytest.raises(CommitFailedError, match="gave this member up"):
            await consumer.commit({T0: 1})
        await consumer.poll(1)
        with pytest.raises(CommitFailedError, match="u-7: not this consumer's"):
            await consumer.commit({("u", 7): 1})


# -- positions -------------------------------------------------------------------------------------


@within_an_hour
async def test_position_lag_and_seek():
    world = World(t=1)
    world.topics.write("t", 0, 10)
    async with world.consumer() as consumer:
        assert [r.offset for r in await consumer.poll(3)] == [0, 1, 2]
        assert await consumer.position("t", 0) == 3
        assert await consumer.lag("t", 0) == 7
        consumer.seek("t", 0, 8)
        assert await consumer.position("t", 0) == 8
        assert [r.offset for r in await drain(consumer)] == [8, 9]
        consumer.seek("t", 0, StartAt.EARLIEST)
        assert await consumer.position("t", 0) == 0
        assert await consumer.lag("t", 0) == 10
        found = []
        async for record in consumer:
            found.append(record.offset)
            if len(found) == 2:
                consumer.seek("t", 0, 7)
            if record.offset == 9:
                break
        assert found == [0, 1, 7, 8, 9]
        with pytest.raises(ValueError, match="t-9 is not assigned"):
            consumer.seek("t", 9, 0)


@pytest.mark.parametrize("wrong", [-1, 1 << 63, True, None, "5", LastN(-1)], ids=repr)
@within_an_hour
async def test_a_position_that_is_none_is_refused_by_seek_and_changes_nothing(wrong):
    world = World(t=2)
    world.topics.write("t", 0, 4)
    world.topics.write("t", 1, 4)
    async with world.consumer() as consumer:
        await consumer.poll(1)
        for partition in (0, 1):
            with pytest.raises((TypeError, ValueError), match="position="):
                consumer.seek("t", partition, wrong)
        assert len(await drain(consumer)) == 7
        await consumer.commit()
        assert [await consumer.committed("t", partition) for partition in (0, 1)] == [4, 4]


@within_an_hour
async def test_paused_partitions_are_kept_and_give_nothing():
    world = World()
    world.topics.write("t", 0, 4)
    world.topics.write("t", 1, 4)
    async with world.consumer() as consumer:
        first = await consumer.poll(1)
        consumer.pause(T0)
        assert consumer.paused == {T0}
        found = await drain(consumer)
        assert {r.partition for r in found} == {1}
        assert consumer.assignment == {T0, T1}
        consumer.resume(("t", 0))
        found += first + await drain(consumer)
        assert places(found) == [("t", p, n) for p in (0, 1) for n in range(4)]


@within_an_hour
async def test_a_pause_in_an_iteration_takes_back_what_was_fetched():
    world = World()
    world.topics.write("t", 0, 3)
    world.topics.write("t", 1, 3)
    found = []
    async with world.consumer() as consumer:
        async for record in consumer:
            found.append(record)
            if len(found) == 1:
                consumer.pause((record.topic, record.partition))
            if len(found) == 4:
                consumer.resume(*consumer.paused)
            if len(found) == 6:
                break
    assert len({r.partition for r in found[1:4]}) == 1
    assert found[0].partition != found[1].partition
    assert places(found) == [("t", p, n) for p in (0, 1) for n in range(3)]


# -- rebalances ------------------------------------------------------------------------------------


@within_an_hour
async def test_a_second_member_gets_its_share_and_nothing_is_read_twice_or_lost():
    world = World()
    world.topics.write("t", 0, 50)
    world.topics.write("t", 1, 50)
    heard = Heard()
    async with world.consumer(listener=heard) as first, polling(first) as firsts:
        await after(100)
        async with world.consumer() as second, polling(second) as seconds:
            await after(200)
            assert first.assignment == {T0}
            assert second.assignment == {T1}
            assert heard.events == [("assigned", [T0, T1]), ("revoked", [T1])]
            world.topics.write("t", 0, 50)
            world.topics.write("t", 1, 50)
            await after(1_000)
        # Who leaves gives back at once: nobody waits for a session to end.
        await after(200)
        assert first.assignment == {T0, T1}
        world.topics.write("t", 1, 50)
        await after(200)
    assert places(firsts + seconds) == [("t", 0, n) for n in range(100)] + [
        ("t", 1, n) for n in range(150)
    ]
    assert world.group.overlaps == []
    assert world.group.offsets == {T0: 100, T1: 150}


@within_an_hour
async def test_a_partition_is_not_given_back_while_the_application_works_on_it():
    world = World()
    world.topics.write("t", 0, 10)
    world.topics.write("t", 1, 10)
    async with world.consumer() as first:
        given = await first.poll(20)
        async with world.consumer() as second, polling(second) as seconds:
            await after(20_000)
            assert first.assignment == {T0, T1}
            assert seconds == []
            given += await drain(first)
            await after(500)
            assert first.assignment == {T0}
            assert second.assignment == {T1}
    assert seconds == [], "all of it was handled, and committed before it was given back"
    assert places(given) == [("t", p, n) for p in (0, 1) for n in range(10)]
    assert world.group.overlaps == []


@within_an_hour
async def test_an_iteration_gives_back_after_the_record_it_is_at():
    world = World()
    world.topics.write("t", 0, 3)
    world.topics.write("t", 1, 3)
    async with world.consumer() as first:
        found = []
        async for record in first:
            found.append(record)
            if len(found) == 1:
                second = world.consumer()
                await second.__aenter__()
                await after(100)
            if len(found) == 3 + (record.partition == 1):
                break
        await settle()
        assert first.assignment == {T0}
        async with second:
            found += await drain(second)
    assert places(found) == [("t", p, n) for p in (0, 1) for n in range(3)]


@within_an_hour
async def test_a_member_that_was_given_up_hears_of_the_loss_and_joins_anew():
    world = World()
    heard = Heard()
    world.topics.write("t", 0, 4)
    async with world.consumer(listener=heard) as consumer:
        await consumer.poll(2)
        world.group.kick("m1")
        await after(5_000)
        assert len(world.group.members) == 0, "not before the application knows"
        found = await drain(consumer)
        assert heard.events == [
            ("assigned", [T0, T1]),
            ("lost", [T0, T1]),
            ("assigned", [T0, T1]),
        ]
        assert consumer.member_id == "m2"
        assert [r.offset for r in found] == [0, 1, 2, 3], "what was not committed comes again"


@within_an_hour
async def test_an_application_that_does_not_come_back_gives_its_partitions_to_others():
    world = World()
    world.topics.write("t", 0, 4)
    heard = Heard()
    async with world.consumer(listener=heard, max_poll_interval_ms=10_000) as first:
        await first.poll(2)
        async with world.consumer() as second, polling(second) as seconds:
            await after(30_000)
            assert second.assignment == {T0, T1}
            assert [r.offset for r in seconds] == [0, 1, 2, 3]
            await first.poll(timeout_s=1)
            assert ("lost", [T0, T1]) in heard.events
            await after(100)
            await first.poll(timeout_s=1)
            assert len(first.assignment) == 1
    assert world.group.overlaps == []


def test_a_topic_that_does_not_exist_is_waited_for_and_told_once(caplog):
    """A wrong name would otherwise show nowhere: a member gets no partitions, and waits."""

    @within_an_hour
    async def wait():
        world = World(t=2)
        async with world.consumer("typo"), world.consumer("t"):
            await after(60_000)

    wait()
    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert told == ["waiting for a topic that does not exist topic=typo group=g"]


@within_an_hour
async def test_waiting_for_records_is_no_hanging():
    world = World()
    async with world.consumer(max_poll_interval_ms=10_000) as consumer:
        waiting = asyncio.create_task(consumer.poll())
        await after(120_000)
        world.topics.write("t", 0)
        assert len(await waiting) == 1
        assert consumer.member_id == "m1"


@within_an_hour
async def test_a_listener_may_commit_what_it_gives_back_and_seek_in_what_it_gets():
    world = World()
    world.topics.write("t", 0, 6)
    world.topics.write("t", 1, 6)

    class Listener(RebalanceListener):
        async def on_assigned(self, partitions):
            for where in partitions:
                assert await consumer.position(*where) == 0
                consumer.seek(*where, 4)

        async def on_revoked(self, partitions):
            await consumer.commit(dict.fromkeys(partitions, 6))
            with pytest.raises((RuntimeError, ClientClosedError)):
                await consumer.poll()

    consumer = world.consumer(listener=Listener(), auto_commit=False)
    async with consumer:
        assert [r.offset for r in await drain(consumer)] == [4, 5, 4, 5]
        async with world.consumer() as second:
            await after(10)
            assert await consumer.poll(timeout_s=1) == []
            assert world.group.offsets == {T1: 6}
            assert await drain(second) == []
            assert second.assignment == {T1}


@within_an_hour
async def test_what_a_listener_raises_is_raised_and_the_partitions_go_all_the_same():
    world = World()
    world.topics.write("t", 1, 2)

    class Listener(RebalanceListener):
        def on_revoked(self, partitions):
            raise ZeroDivisionError

    consumer = await world.consumer(listener=Listener()).__aenter__()
    await drain(consumer)
    async with world.consumer() as second:
        await after(10)
        with pytest.raises(ZeroDivisionError):
            await consumer.poll(timeout_s=1)
        assert consumer.assignment == {T0}
        assert len(await drain(second)) == 2, "it was not done with them"
    with pytest.raises(ZeroDivisionError):
        await consumer.close()
    assert world.group.members == {}


# -- what happens to nodes -------------------------------------------------------------------------


@within_an_hour
async def test_a_lost_coordinator_costs_time_and_nothing_else():
    world = World()
    world.topics.write("t", 0, 3)
    failures = [not_coordinator(), UnreachableError("gone"), not_coordinator()]
    world.group.failures.extend(failures * 2)
    heard = Heard()
    async with world.consumer(listener=heard) as consumer:
        found = await drain(consumer, 5)
        world.group.failures.extend(failures)
        await after(20_000)
        world.topics.write("t", 0, 3)
        found += await drain(consumer)
        assert [r.offset for r in found] == [0, 1, 2, 3, 4, 5]
        assert heard.events == [("assigned", [T0, T1])]


@within_an_hour
async def test_answers_that_are_lost_are_asked_for_again():
    world = World()
    world.topics.write("t", 0, 3)
    world.group.lost_answers = 2
    async with world.consumer() as consumer:
        assert len(await drain(consumer)) == 3
        world.group.lost_answers = 1
        await consumer.commit()
        assert consumer.member_id == "m1"
    assert world.group.members == {}


@within_an_hour
async def test_poll_raises_when_patience_ends_and_the_next_begins_anew():
    world = World()
    world.topics.write("t", 0, 3)
    async with world.consumer(patience_ms=5_000) as consumer:
        world.group.failures.extend([not_coordinator()] * 12)
        with pytest.raises(NotNowError):
            await consumer.poll()
        assert len(await drain(consumer, 10)) == 3


@within_an_hour
async def test_a_group_that_refuses_says_so_in_every_poll():
    world = World()
    refusal = TargetNotFoundError("no such thing", status=404, error_code=40499)
    world.group.failures.append(refusal)
    async with world.consumer() as consumer:
        for _ in range(2):
            with pytest.raises(TargetNotFoundError):
                await consumer.poll()


@within_an_hour
async def test_an_instance_that_was_taken_over_stops():
    world = World()
    world.topics.write("t", 0, 3)
    async with world.consumer(instance_id="i") as first:
        await drain(first)
        world.group.failures.append(StaleMemberError("stale", status=409, error_code=40925))
        await after(5_000)
        with pytest.raises(ConsumerFencedError):
            await first.poll()


@pytest.mark.parametrize("call", ["poll", "commit", "after a pause"])
def test_an_instance_that_another_process_has_ends_and_leaves_that_one_alone(call):
    @within_an_hour
    async def run():
        world = World()
        world.topics.write("t", 0, 3)
        heard = Heard()
        settings = {"instance_id": "i", "auto_commit": False, "max_poll_interval_ms": 10_000}
        async with world.consumer(listener=heard, **settings) as first:
            await drain(first, 3)
            if call == "after a pause":
                # It is silent by then, and may be in the group yet.
                await after(11_000)
            async with world.consumer(**settings) as second, polling(second):
                await after(100)
                if call == "commit":
                    with pytest.raises(ConsumerFencedError):
                        await first.commit({T0: 1})
                await after(6_000)
                for _ in range(2):
                    with pytest.raises(ConsumerFencedError):
                        await first.poll(timeout_s=1)
                with pytest.raises(ConsumerFencedError):
                    await first.commit({T0: 1})
                await after(60_000)
                assert second.assignment == {T0, T1}
                assert second.member_id in world.group.members
                await second.commit({T0: 3})
        assert world.group.overlaps == []
        assert world.group.offsets == {T0: 3}

    run()


@within_an_hour
async def test_an_instance_that_hangs_gives_its_partitions_up_and_comes_back():
    world = World()
    heard = Heard()
    settings = {"max_poll_interval_ms": 10_000, "session_timeout_ms": 8_000}
    async with world.consumer(instance_id="i", listener=heard, **settings) as first:
        await first.poll(timeout_s=1)
        async with world.consumer() as second, polling(second):
            await after(40_000)
            assert second.assignment == {T0, T1}
            await first.poll(timeout_s=1)
            await after(1_000)
            await first.poll(timeout_s=1)
            assert ("lost", [T0]) in heard.events or ("lost", [T0, T1]) in heard.events
            assert len(first.assignment) == 1
    assert world.group.overlaps == []


@within_an_hour
async def test_an_instance_that_comes_back_finds_its_partitions():
    world = World()
    heard = Heard()
    async with world.consumer() as other, polling(other):
        async with world.consumer(instance_id="i") as consumer:
            await drain(consumer)
            had = consumer.assignment
        await after(1_000)
        assert len(world.group.members) == 2, "it did not leave"
        async with world.consumer(instance_id="i", listener=heard) as again:
            await drain(again)
            assert again.assignment == had
        assert heard.events[0] == ("assigned", sorted(had))


@within_an_hour
async def test_a_partition_that_cannot_be_read_is_told_and_the_others_go_on():
    world = World()
    world.topics.write("t", 0, 3)
    world.topics.write("t", 1, 3)
    async with world.consumer(patience_ms=1_000) as consumer:
        await consumer.poll(1)
        world.topics.partitions["t", 0].failures.extend([not_coordinator()] * 7)
        # The fetch that waits for records brings this one.
        world.topics.write("t", 0)
        found = await consumer.poll() + await consumer.poll()
        with pytest.raises(NotNowError):
            await consumer.poll()
        world.topics.write("t", 0, 3)
        found += await drain(consumer, 5)
        assert {r.partition for r in found} == {0, 1}
        assert await consumer.position("t", 0) == 7


@within_an_hour
async def test_a_topic_that_goes_is_the_groups_business():
    world = World(t=1, u=1)
    world.topics.write("t", 0, 1)
    async with world.consumer("t", "u") as consumer:
        assert len(await drain(consumer)) == 1
        gone = world.topics.partitions.pop(("u", 0))
        # The fetch that waits for records brings this one; the next finds no topic.
        gone.append(value_at("u", 0, 0))
        assert len(await drain(consumer, 3)) == 1
        del world.group.topics["u"]
        world.group.rebalance()
        assert await consumer.poll(timeout_s=1) == []
        assert consumer.assignment == {T0}


# -- a topic that is deleted and made again at once ------------------------------------------------


@within_an_hour
@pytest.mark.parametrize("count", [0, 2, 9])
@pytest.mark.parametrize("policy", OnOutOfRange)
async def test_a_member_goes_on_in_the_new_topic_from_its_start(count, policy):
    """Also if the new topic has as many records as the offset at which the member was, or more."""
    world = World(t=1)
    world.topics.write("t", 0, 5)
    async with world.consumer(on_out_of_range=policy) as consumer:
        assert len(await drain(consumer)) == 5
        await consumer.commit()
        world.make_again()
        world.topics.write("t", 0, count)
        first = 0 if policy is not OnOutOfRange.LATEST else count
        assert places(await drain(consumer)) == [("t", 0, n) for n in range(first, count)]
        world.topics.write("t", 0, 1)
        assert places(await drain(consumer)) == [("t", 0, count)]
    assert world.group.offsets == {T0: count + 1}


@within_an_hour
@pytest.mark.parametrize(
    ("policy", "first"),
    [(OnOutOfRange.EARLIEST, 0), (OnOutOfRange.LATEST, 3), (OnOutOfRange.FAIL, 3)],
)
async def test_a_member_that_began_at_the_end_goes_on_by_its_policy_not_its_start(policy, first):
    """Whether it asks while there is no topic, or hears of the new one only."""
    for is_noticed in (True, False):
        world = World(t=1)
        world.topics.write("t", 0, 5)
        async with world.consumer(start=StartAt.LATEST, on_out_of_range=policy) as consumer:
            assert await drain(consumer) == []
            partitions = dict(world.topics.partitions)
            if is_noticed:
                world.topics.partitions.clear()
                for partition in partitions.values():
                    partition.wake()
                await consumer.poll(timeout_s=1)
                world.topics.partitions.update(partitions)
            world.make_again()
            world.topics.write("t", 0, 3)
            # It rests a second before it looks for the topic again.
            found = [record for _ in range(4) for record in await consumer.poll(timeout_s=2)]
            assert places(found) == [("t", 0, n) for n in range(first, 3)]


@within_an_hour
async def test_no_offset_of_the_earlier_topic_is_committed():
    world = World(t=1)
    world.topics.write("t", 0, 5)
    async with world.consumer(auto_commit_interval_ms=100) as consumer:
        assert len(await consumer.poll()) == 5
        world.make_again()
        world.topics.write("t", 0, 9)
        # The application still works on records of the earlier topic, and then it is done with them.
        await asyncio.sleep(1)
        with pytest.raises(TargetNotFoundError):
            await consumer.commit({T0: 5})
        with pytest.raises(TargetNotFoundError):
            await consumer.commit()
    assert world.group.offsets == {}


@within_an_hour
async def test_what_is_rewound_to_is_no_offset_of_the_earlier_topic():
    world = World(t=1)
    world.group.offsets[T0] = 3
    world.topics.write("t", 0, 5)
    async with world.consumer(auto_commit=False) as consumer:
        assert len(await drain(consumer)) == 2
        assert (consumer.given_out(), consumer.topic_tags()) == ({T0: 5}, {T0: "t1"})
        world.make_again()
        world.topics.write("t", 0, 9)
        await consumer.rewind()
        assert places(await drain(consumer)) == [("t", 0, n) for n in range(9)]
        assert (consumer.given_out(), consumer.topic_tags()) == ({T0: 9}, {T0: "t2"})


@within_an_hour
@pytest.mark.parametrize("written", [0, 2])
async def test_partitions_assigned_by_hand_are_read_on_only_from_where_they_are_sent(written):
    """Whether the consumer has records of the earlier topic, or has only waited for some."""
    world = World(t=1)
    world.group.offsets[T0] = 5
    world.topics.write("t", 0, 5 + written)
    async with world.consumer(None, on_out_of_range=OnOutOfRange.FAIL) as consumer:
        await consumer.assign([T0])
        assert len(await drain(consumer)) == written
        world.make_again()
        world.topics.write("t", 0, 9)
        for _ in range(2):
            with pytest.raises(UnreadableOffsetError) as refused:
                await drain(consumer)
            assert refused.value.is_made_again
        consumer.seek("t", 0, 1)
        assert places(await drain(consumer)) == [("t", 0, n) for n in range(1, 9)]
    assert world.group.offsets == {T0: 9}


# -- without a group -------------------------------------------------------------------------------


@within_an_hour
async def test_without_a_group_all_partitions_are_read_also_those_that_are_added():
    world = World()
    world.topics.write("t", 0, 2)
    async with world.consumer(group=None, start=StartAt.LATEST) as consumer:
        assert await consumer.poll(timeout_s=1) == []
        world.topics.grow("t", 3)
        world.topics.write("t", 2, 2)
        world.topics.write("t", 0, 1)
        found = await drain(consumer)
        assert places(found) == [("t", 0, 2), ("t", 2, 0), ("t", 2, 1)]
        assert consumer.member_id is None
        with pytest.raises(ValueError, match="without a group"):
            await consumer.commit()
    assert world.group.beats == []


@within_an_hour
async def test_one_that_was_told_nothing_to_read_says_so_and_does_not_wait():
    world = World()
    async with world.consumer(None, group=None) as consumer:
        with pytest.raises(ValueError, match="subscribe to topics, or assign partitions"):
            await consumer.poll(timeout_s=1)
        await consumer.assign([])
        assert await consumer.poll(timeout_s=1) == []


@within_an_hour
async def test_without_a_group_a_missing_topic_is_an_error():
    world = World()
    with pytest.raises(TargetNotFoundError):
        async with world.consumer("nope", group=None):
            pass
    with pytest.raises(ValueError, match="pattern needs a group"):
        Consumer(
            ConsumerOptions(),
            Subscription(pattern="a.*"),
            ports=ConsumerPorts(calls=None, transport=None, metadata=None, clock=None),
            new_id=str,
        )


@within_an_hour
async def test_partitions_assigned_by_hand_use_the_groups_offsets():
    world = World()
    world.topics.write("t", 0, 4)
    world.topics.write("t", 1, 4)
    world.group.offsets[T1] = 2
    async with world.consumer(None) as consumer:
        await consumer.assign([("t", 1)])
        assert [r.offset for r in await drain(consumer)] == [2, 3]
        await consumer.assign([T0])
        assert [r.offset for r in await drain(consumer)] == [0, 1, 2, 3]
        assert world.group.offsets == {T1: 4}
        assert consumer.assignment == {T0}
    assert world.group.offsets == {T0: 4, T1: 4}
    assert world.group.beats == []


@within_an_hour
async def test_a_subscription_may_be_replaced():
    world = World(t=1, u=1)
    world.topics.write("t", 0, 1)
    world.topics.write("u", 0, 1)
    async with world.consumer("t") as consumer:
        await drain(consumer)
        await consumer.subscribe("t", "u")
        await after(100)
        assert world.group.members["m1"].subscription == Subscription(topics=("t", "u"))
        assert consumer.subscription == Subscription(topics=("t", "u"))
        await consumer.assign([("u", 0)])
        assert consumer.subscription is None
        assert world.group.members == {}
        assert [(r.topic, r.offset) for r in await drain(consumer)] == []
        await consumer.subscribe("t", "u")
        await drain(consumer)
        assert world.group.members.keys() == {"m2"}


# -- stopping --------------------------------------------------------------------------------------


@within_an_hour
async def test_a_stop_ends_a_poll_that_waits_and_all_later_ones():
    world = World()
    async with world.consumer() as consumer:
        waiting = asyncio.create_task(consumer.poll())
        await after(1_000)
        assert not waiting.done()
        consumer.stop()
        assert consumer.is_stopped
        assert await waiting == []
        world.topics.write("t", 0, 3)
        assert await consumer.poll() == []
        assert world.group.owned("m1") == {T0, T1}, "it is a member until it is left"
    assert world.group.members == {}


@within_an_hour
async def test_a_stop_ends_an_iteration_after_the_record_it_is_at_which_is_done():
    world = World(t=1)
    world.topics.write("t", 0, 5)
    found = []
    async with world.consumer() as consumer:
        async for record in consumer:
            found.append(record.offset)
            if record.offset == 2:
                consumer.stop()
        async for record in consumer:
            found.append(record.offset)
    assert found == [0, 1, 2]
    assert world.group.offsets == {T0: 3}


@within_an_hour
async def test_a_stop_ends_an_iteration_that_waits():
    world = World(t=1)
    async with world.consumer() as consumer:
        asyncio.get_running_loop().call_later(5, consumer.stop)
        assert [record async for record in consumer] == []
    assert world.group.members == {}


@within_an_hour
async def test_a_stop_does_not_wait_for_a_rebalance():
    """A listener that hangs, for example, because its database is gone."""

    class Hanging(RebalanceListener):
        async def on_assigned(self, partitions):
            await asyncio.sleep(100_000)

    world = World(t=1)
    async with world.consumer(listener=Hanging()) as consumer:
        asyncio.get_running_loop().call_later(5, consumer.stop)
        assert await consumer.poll() == []
    assert world.group.members == {}


@within_an_hour
async def test_a_consumer_that_was_stopped_before_it_was_opened_gives_nothing():
    world = World(t=1)
    world.topics.write("t", 0, 5)
    consumer = world.consumer()
    consumer.stop()
    async with consumer:
        assert await consumer.poll() == []
    consumer.stop()


@within_an_hour
async def test_a_loop_of_polls_that_ignores_the_stop_leaves_turns_to_others():
    world = World(t=1)
    async with world.consumer() as consumer, asyncio.timeout(1):
        consumer.stop()
        ticks = asyncio.create_task(asyncio.sleep(0))
        while not ticks.done():
            await consumer.poll()
