"""The blocking consumer: what it was given is what it is done with, and its listener may call it."""

import itertools
import os
import signal
import threading

import pytest

from milena.blocking.consumer import Consumer, on_threads
from milena.blocking.loop_thread import ClientLoopThread
from milena.consuming.active_subscription import ConsumerPorts
from milena.consuming.consumer import Consumer as AsyncConsumer
from milena.consuming.options import ConsumerOptions, RebalanceListener, Subscription
from milena.errors import ClientClosedError
from milena.model.clock import SystemClock
from milena.records import StartAt, TopicPartition
from tests.support.fakes.groups import FakeGroup
from tests.support.fakes.topics import FakeTopics, value_at

T0 = TopicPartition("t", 0)


class World:
    """A topic of one partition, a group, and consumers of it on one loop thread."""

    def __init__(self, thread):
        self.thread = thread
        self.topics = FakeTopics(t=1)
        self.group = FakeGroup(t=1)
        self.ids = itertools.count(1)

    def write(self, count):
        async def work():
            self.topics.write("t", 0, count)

        self.thread.run(work())

    def consumer(self, **options):
        options["listener"] = on_threads(options.get("listener"))

        async def make():
            return AsyncConsumer(
                ConsumerOptions(group="g", **options),
                Subscription(topics=("t",)),
                ports=ConsumerPorts(
                    calls=self.group,
                    transport=self.topics,
                    metadata=self.topics,
                    clock=SystemClock(),
                ),
                new_id=lambda: f"m{next(self.ids)}",
            )

        return Consumer(self.thread.run(make()), self.thread)


@pytest.fixture
def world():
    thread = ClientLoopThread()
    yield World(thread)
    thread.close()


def test_poll_gives_records_and_nothing_when_its_time_is_up(world):
    world.write(3)
    with world.consumer() as consumer:
        assert [r.value for r in consumer.poll()] == [value_at("t", 0, n) for n in range(3)]
        assert consumer.poll(timeout_s=0.05) == []
        assert consumer.assignment == {T0}
        assert consumer.member_id == "m1"
        assert consumer.subscription == Subscription(topics=("t",))
        assert consumer.generation == 1
    assert world.group.offsets == {T0: 3}
    with pytest.raises(ClientClosedError):
        consumer.poll()


def test_an_iteration_that_is_left_in_the_middle_commits_what_it_was_given(world):
    world.write(5)
    with world.consumer() as consumer:
        for record in consumer:
            if record.offset == 2:
                break
    assert world.group.offsets == {T0: 3}
    with world.consumer() as consumer:
        assert [r.offset for r in consumer.poll()] == [3, 4]


def test_an_iteration_that_fails_commits_the_records_before_that(world):
    world.write(5)

    def fail():
        with world.consumer() as consumer:
            for record in consumer:
                if record.offset == 2:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert world.group.offsets == {T0: 2}


def test_positions_commits_pauses_and_seeks(world):
    world.write(6)
    with world.consumer(auto_commit=False) as consumer:
        assert [r.offset for r in consumer.poll(2)] == [0, 1]
        assert consumer.position("t", 0) == 2
        assert consumer.lag("t", 0) == 4
        consumer.commit()
        assert consumer.committed("t", 0) == 2
        consumer.commit({("t", 0): 1})
        assert consumer.committed("t", 0) == 1
        consumer.pause(T0)
        assert consumer.paused == {T0}
        assert consumer.poll(timeout_s=0.05) == []
        consumer.resume(T0)
        consumer.seek("t", 0, 5)
        assert [r.offset for r in consumer.poll()] == [5]
        consumer.seek("t", 0, StartAt.EARLIEST)
        found = []
        for record in consumer:
            found.append(record.offset)
            if record.offset == 1:
                consumer.seek("t", 0, 4)
            if record.offset == 5:
                break
        assert found == [0, 1, 4, 5]
        consumer.assign([T0])
        assert [r.offset for r in consumer.poll(1)] == [1]
        consumer.subscribe("t")
        assert [r.offset for r in consumer.poll(1)] == [1]
    assert world.group.offsets == {T0: 1}


def test_a_listener_may_call_the_consumer_from_its_own_thread(world):
    heard = []

    class Listener(RebalanceListener):
        def on_assigned(self, partitions):
            heard.append(("assigned", threading.current_thread() is threading.main_thread()))
            consumer.seek("t", 0, 2)

        def on_revoked(self, partitions):
            consumer.commit({T0: 9})
            heard.append(("revoked", sorted(partitions)))

    world.write(3)
    consumer = world.consumer(listener=Listener(), auto_commit=False)
    with consumer:
        assert [r.offset for r in consumer.poll()] == [2]
    assert heard == [("assigned", False), ("revoked", [T0])]
    assert world.group.offsets == {T0: 9}


def test_a_listener_with_async_methods_is_refused(world):
    class Listener(RebalanceListener):
        async def on_lost(self, partitions):
            pass

    with pytest.raises(TypeError, match="plain methods: on_lost"):
        world.consumer(listener=Listener())


def test_what_was_taken_and_never_arrived_is_given_again(world, monkeypatch):
    world.write(4)
    run = world.thread.run

    def interrupted(work, timeout_s=None):
        monkeypatch.setattr(world.thread, "run", run)
        run(work, timeout_s)
        raise KeyboardInterrupt

    with world.consumer() as consumer:
        assert [r.offset for r in consumer.poll(2)] == [0, 1]
        monkeypatch.setattr(world.thread, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(1)
        assert [r.offset for r in consumer.poll()] == [2, 3]


def test_a_stop_of_another_thread_ends_a_poll_and_an_iteration(world):
    with world.consumer() as consumer:
        assert consumer.poll(timeout_s=0.01) == []
        threading.Timer(0.01, consumer.stop).start()
        assert consumer.poll() == []
        assert list(consumer) == []
        assert consumer.is_stopped


def test_a_stop_within_an_iteration_ends_it_after_the_record(world):
    world.write(5)
    found = []
    with world.consumer() as consumer:
        for record in consumer:
            found.append(record.offset)
            if record.offset == 2:
                consumer.stop()
    assert found == [0, 1, 2]
    assert world.group.offsets == {T0: 3}


def test_a_stop_of_a_signal_handler_ends_a_poll(world):
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
    try:
        with world.consumer() as consumer:
            threading.Timer(0.01, os.kill, [os.getpid(), signal.SIGUSR1]).start()
            assert consumer.poll() == []
    finally:
        signal.signal(signal.SIGUSR1, before)
