"""The blocking client: its thread, its process, and what interrupts it."""

import asyncio
import os
import threading
from random import Random

import pytest

from milena import Client, sync
from milena.blocking.clients import Resource
from milena.blocking.loop_thread import ClientLoopThread
from milena.cluster.http import segment
from milena.consuming.options import ConsumerOptions
from milena.errors import (
    BufferFullError,
    ClientClosedError,
    TargetNotFoundError,
    UnknownResultError,
    UnreachableError,
)
from milena.producing.options import ProducerOptions
from milena.producing.producer import Producer as AsyncProducer
from milena.records import LastN, TimestampMs, TopicPartition, check_position
from tests.support.fakes.scripted_cluster import ScriptedClock, ScriptedCluster


@pytest.fixture
def thread():
    found = ClientLoopThread()
    yield found
    found.close()


def blocking_producer(cluster, thread, **options):
    producer = AsyncProducer(
        ProducerOptions(**{"linger_ms": 0, **options}),
        transport=cluster,
        metadata=cluster,
        clock=ScriptedClock(),
        chance=Random(1),
    )
    return sync.Producer(producer, thread)


# -- the thread --------------------------------------------------------------------------------------


def test_work_runs_on_the_thread_and_its_result_comes_back(thread):
    async def where():
        return threading.current_thread().name

    assert thread.run(where()) == "milena"
    assert not thread.is_current


def test_an_error_comes_back_too(thread):
    async def fail():
        raise UnreachableError("gone")

    with pytest.raises(UnreachableError, match="gone"):
        thread.run(fail())


def test_work_that_takes_too_long_is_cancelled(thread):
    begun, ended = threading.Event(), threading.Event()

    async def forever():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    for timeout_s in (0.01, 0.1, 1, 10):
        with pytest.raises(TimeoutError):
            thread.run(forever(), timeout_s=timeout_s)
        if begun.is_set():
            break
        # The thread did not come to it: there is nothing to end.
    assert ended.wait(10)


def test_an_interrupt_cancels_the_work(thread, monkeypatch):
    ended = threading.Event()

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    class Interrupted:
        def __init__(self, future):
            self.future = future

        def result(self, timeout=None):
            raise KeyboardInterrupt

        def cancel(self):
            # Begun first, or there is nothing to end.
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), thread._loop).result()
            return self.future.cancel()

    real = asyncio.run_coroutine_threadsafe
    with monkeypatch.context() as patch:
        patch.setattr(
            "milena.blocking.loop_thread.asyncio.run_coroutine_threadsafe",
            lambda work, loop: (
                Interrupted(real(work, loop)) if work.__name__ == "forever" else real(work, loop)
            ),
        )
        with pytest.raises(KeyboardInterrupt):
            thread.run(forever())
    assert ended.wait(10)


def test_the_loop_must_not_wait_for_itself(thread):
    async def inner():
        return 1

    async def outer():
        assert thread.is_current
        thread.run(inner())

    with pytest.raises(RuntimeError, match="own thread"):
        thread.run(outer())


def test_closing_cancels_what_runs_and_may_be_done_twice():
    thread = ClientLoopThread()
    ended = threading.Event()

    async def background():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def begin():
        task = asyncio.get_running_loop().create_task(background())
        await asyncio.sleep(0)
        return task

    assert thread.run(begin()) is not None
    thread.close()
    thread.close()
    assert ended.is_set()
    assert not thread._thread.is_alive()

    async def late():
        return 1

    with pytest.raises(ClientClosedError):
        thread.run(late())


def test_what_another_process_opened_is_refused(thread, monkeypatch):
    async def work():
        return 1

    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        assert not thread.is_ours
        with pytest.raises(ClientClosedError, match="another process"):
            thread.run(work())
        thread.close()
    assert thread.run(work()) == 1


# -- the producer ------------------------------------------------------------------------------------


def test_a_record_is_delivered_from_the_callers_thread(thread):
    cluster = ScriptedCluster()
    with blocking_producer(cluster, thread) as producer:
        delivery = producer.send("t", b"v")
        assert delivery.result(10).offset == 0
        assert delivery.is_done
        assert delivery.result().offset == 0
    assert cluster.logs[0].values == [b"v"]


def test_what_went_wrong_is_raised_by_result(thread):
    cluster = ScriptedCluster()
    cluster.logs[0].script = ["lost answer"]
    with (
        blocking_producer(cluster, thread, idempotent=False) as producer,
        pytest.raises(UnknownResultError),
    ):
        producer.send("t", b"v").result(10)


def test_a_result_that_is_not_there_in_time_may_be_asked_for_again(thread):
    cluster = ScriptedCluster()
    with blocking_producer(cluster, thread, linger_ms=60_000) as producer:
        delivery = producer.send("t", b"v")
        with pytest.raises(TimeoutError):
            delivery.result(0.001)
        producer.flush()
        assert delivery.result(10).offset == 0


def test_a_full_buffer_blocks_until_there_is_room(thread):
    cluster = ScriptedCluster()
    options = {"batch_bytes": 1024, "buffer_bytes": 2048, "linger_ms": 5000}
    with blocking_producer(cluster, thread, **options) as producer:
        for number in range(50):
            producer.send("t", b"%0500d" % number)
    assert cluster.logs[0].values == [b"%0500d" % number for number in range(50)]


def test_no_room_in_time_is_an_error(thread):
    cluster = ScriptedCluster()
    cluster.logs[0].script = ["hang"]
    options = {"batch_bytes": 1024, "buffer_bytes": 1024, "max_block_ms": 5}
    with blocking_producer(cluster, thread, **options) as producer:
        delivery = producer.send("t", b"x" * 900)
        with pytest.raises(BufferFullError):
            producer.send("t", b"y" * 900)
        producer.close(timeout_s=0)
        with pytest.raises(UnknownResultError):
            delivery.result(10)


def test_many_are_delivered_from_the_callers_thread_and_wait_for_room_together(thread):
    cluster, called = ScriptedCluster(), []
    values = [b"%0200d" % number for number in range(8)]
    options = {"batch_bytes": 1024, "buffer_bytes": 2048, "linger_ms": 5000}
    with blocking_producer(cluster, thread, **options) as producer:
        kept = [producer.send_many("t", values, on_delivery=called.append) for _ in range(10)]
        producer.flush()
        assert [kept[-1].result(10)[n].offset for n in range(8)] == list(range(72, 80))
        assert [len(run.places) for run in kept[-1].runs] == [4, 4]
    assert [deliveries.is_done for deliveries in kept] == [True] * 10
    assert len(called) == 10
    assert cluster.logs[0].values == values * 10


def test_a_result_of_many_that_is_not_there_in_time_may_be_asked_for_again(thread):
    cluster = ScriptedCluster(partitions=2)
    with blocking_producer(cluster, thread, linger_ms=60_000) as producer:
        deliveries = producer.send_many("t", [b"a", b"b"], keys=[b"k1", b"k2"])
        with pytest.raises(TimeoutError):
            deliveries.result(0.001)
        assert deliveries.outcomes is None
        producer.flush()
        assert len(deliveries.result(10)) == len(deliveries) == len(deliveries.outcomes) == 2


def test_a_callback_may_send_but_never_waits_for_room(thread):
    cluster = ScriptedCluster()
    outcomes = []
    options = {"batch_bytes": 1024, "buffer_bytes": 1024}
    with blocking_producer(cluster, thread, **options) as producer:

        def again(receipt, error):
            try:
                producer.send("t", b"y" * 900)
            except BufferFullError:
                outcomes.append("full")

        producer.send("t", b"x" * 900, on_delivery=again).result(10)
        producer.flush()
    assert outcomes == ["full"], "the room of the record that is told of is not free yet"


def test_many_threads_are_all_delivered(thread):
    cluster = ScriptedCluster(partitions=3)
    options = {"batch_bytes": 1024, "buffer_bytes": 8192}
    with blocking_producer(cluster, thread, **options) as producer:

        def work(who):
            for number in range(300):
                producer.send("t", b"%d-%04d" % (who, number), key=b"%d" % who)

        workers = [threading.Thread(target=work, args=(who,)) for who in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    written = [value for log in cluster.logs.values() for value in log.values]
    assert len(written) == 1200
    for who in range(4):
        mine = [value for value in written if value.startswith(b"%d-" % who)]
        assert mine == [b"%d-%04d" % (who, number) for number in range(300)]


# -- the client --------------------------------------------------------------------------------------


def new_threads(before):
    """Those of other tests may end in the meantime."""
    return {*threading.enumerate()} - before


def test_a_client_opens_nothing_before_it_is_used():
    before = {*threading.enumerate()}
    with sync.Client("http://127.0.0.1:1"):
        assert new_threads(before) == set()


def test_a_client_that_was_used_leaves_no_thread(unused_tcp_port):
    before = {*threading.enumerate()}
    with sync.Client(f"http://127.0.0.1:{unused_tcp_port}", timeout_s=2) as client:
        with pytest.raises(UnreachableError):
            client.admin.topic_names()
        assert len(new_threads(before)) == 1
    assert new_threads(before) == set()
    client.close()


def test_closing_the_client_closes_its_producers(unused_tcp_port):
    client = sync.Client(f"http://127.0.0.1:{unused_tcp_port}", timeout_s=2)
    producer = client.producer(max_block_ms=0)
    with producer:
        with pytest.raises(UnreachableError):
            producer.send("t", b"v")
        client.close()
        with pytest.raises(ClientClosedError):
            producer.send("t", b"v")


def test_an_option_that_is_wrong_is_said_before_anything_is_opened():
    with sync.Client("http://127.0.0.1:1") as client, pytest.raises(ValueError, match="acks=7"):
        client.producer(acks=7)


@pytest.mark.parametrize("use_before_fork", [True, False])
def test_a_client_works_in_a_process_that_was_forked(use_before_fork, unused_tcp_port):
    client = sync.Client(f"http://127.0.0.1:{unused_tcp_port}", timeout_s=2)

    def is_unreachable():
        try:
            client.admin.topic_names()
        except UnreachableError:
            return True
        return False

    if use_before_fork:
        assert is_unreachable()
    child = os.fork()
    if child == 0:
        # Nothing of pytest's may run in here.
        os._exit(0 if is_unreachable() else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    client.close()


# -- what a client closes --------------------------------------------------------------------------


class Entered:
    """An asynchronous context manager that may refuse, and that must not be left without being entered."""

    def __init__(self, refusal=None):
        self.refusal = refusal
        self.states = []

    async def __aenter__(self):
        if self.refusal is not None:
            raise self.refusal
        self.states.append("entered")

    async def __aexit__(self, kind, error, trace):
        assert self.states == ["entered"]
        self.states.append("left")


def test_what_could_not_be_entered_is_not_left_so_that_its_error_is_the_one_that_is_seen(thread):
    left = []
    resource = Resource(Entered(ValueError("too long")), thread, on_exit=left.append)
    with pytest.raises(ValueError, match="too long"):
        resource.__enter__()
    # As the client does for all that is still open.
    resource.__exit__(None, None, None)
    assert left == [resource]


def test_what_was_made_and_never_entered_is_not_left(thread):
    inner = Entered()
    Resource(inner, thread).__exit__(None, None, None)
    assert inner.states == []


def test_what_was_left_is_not_left_again(thread):
    inner = Entered()
    with Resource(inner, thread) as resource:
        pass
    resource.__exit__(None, None, None)
    assert inner.states == ["entered", "left"]


# -- arguments of another type ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "told", "call"),
    [
        (ValueError, "at least one node", lambda: Client(None)),
        (TypeError, "7 is not a URL of a node", lambda: Client([7])),
        (TypeError, "not str", lambda: Client("http://h", credentials="token")),
        (ValueError, "group=5 is not the name", lambda: ConsumerOptions(group=5)),
        (ValueError, "group='' is not the name", lambda: ConsumerOptions(group="")),
        (ValueError, "batch_bytes='1M' must be between", lambda: ProducerOptions(batch_bytes="1M")),
        (ValueError, "linger_ms=None must be", lambda: ProducerOptions(linger_ms=None)),
        (ValueError, "linger_ms=nan must be", lambda: ProducerOptions(linger_ms=float("nan"))),
        (ValueError, "fetch_bytes=True must be", lambda: ConsumerOptions(fetch_bytes=True)),
        (TypeError, "whole number", lambda: check_position(TimestampMs(1.5))),
        (TypeError, "whole number", lambda: check_position(LastN("2"))),
        (TypeError, "start=True is not a position", lambda: check_position(True)),
        (ValueError, "start=-1 must be 0 or above", lambda: ConsumerOptions(start=-1)),
        (ValueError, "must be 0 or above", lambda: check_position(LastN(-1))),
        (ValueError, "must be at most", lambda: check_position(TimestampMs(1 << 63))),
        (TypeError, "'visits' is not a partition: give", lambda: TopicPartition.of("visits")),
        (TypeError, "('t', '0') is not a partition", lambda: TopicPartition.of(("t", "0"))),
        (TypeError, "a name is text, not int", lambda: segment(5)),
        (TargetNotFoundError, "'' is not a name", lambda: segment("")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_argument_of_another_type_is_named_in_the_error(error, told, call):
    with pytest.raises(error) as found:
        call()
    assert told in str(found.value)
