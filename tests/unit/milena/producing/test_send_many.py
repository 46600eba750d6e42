"""Records that are sent together: as if one after the other, taken all or none, with one handle for all of them."""

import asyncio
import threading
from contextlib import asynccontextmanager
from random import Random

import pytest

from milena.errors import (
    BadRecordError,
    BufferFullError,
    ClientClosedError,
    RecordTooLargeError,
    TargetNotFoundError,
    TooLargeError,
)
from milena.producing.options import ProducerOptions
from milena.producing.producer import Producer
from milena.producing.serializers import json_bytes
from tests.support.fakes.scripted_cluster import NOW_MS, ScriptedClock, ScriptedCluster, not_now


@asynccontextmanager
async def producing(cluster, **options):
    producer = Producer(
        ProducerOptions(**{"linger_ms": 0, **options}),
        transport=cluster,
        metadata=cluster,
        clock=ScriptedClock(),
        chance=Random(1),
    )
    async with producer:
        yield producer


def numbered(count):
    return [b"%010d" % n for n in range(count)]


async def test_receipts_come_in_the_order_of_the_values():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        receipts = await (await producer.send_many("t", [b"a", b"b", b"c"]))
    assert [(r.topic, r.partition, r.offset) for r in receipts] == [("t", 0, n) for n in range(3)]
    assert {r.timestamp_ms for r in receipts} == {NOW_MS}
    assert cluster.logs[0].values == [b"a", b"b", b"c"]
    assert len(cluster.logs[0].attempts) == 1


@pytest.mark.parametrize("is_keyed", [False, True])
async def test_records_go_where_they_would_go_one_after_the_other(is_keyed):
    """The same batches, byte for byte: the partitions' turns, keys and bounds are the same rules."""
    values = numbered(500)
    keys = [b"k%d" % (n % 11) if n % 3 else None for n in range(500)] if is_keyed else None
    logs = []
    for is_many in (True, False):
        cluster = ScriptedCluster(partitions=3)
        async with producing(cluster, batch_bytes=1024, linger_ms=1000) as producer:
            if is_many and keys is None:
                await producer.send_many("t", values)
            elif is_many:
                await producer.send_many("t", values, keys=keys)
            else:
                for n, value in enumerate(values):
                    await producer.send("t", value, key=None if keys is None else keys[n])
        logs.append([cluster.logs[p].records for p in range(3)])
    assert logs[0] == logs[1]
    assert min(map(len, logs[0])) > 0


async def test_each_receipt_is_that_of_its_value_wherever_it_went():
    cluster = ScriptedCluster(partitions=4)
    values, keys = numbered(300), [b"k%d" % (n % 13) for n in range(300)]
    async with producing(cluster, batch_bytes=1024) as producer:
        receipts = await (await producer.send_many("t", values, keys=keys))
    assert len(receipts) == 300
    for value, receipt in zip(values, receipts, strict=True):
        assert cluster.logs[receipt.partition].values[receipt.offset] == value


async def test_order_holds_between_one_and_many():
    cluster = ScriptedCluster()
    async with producing(cluster, batch_bytes=1024) as producer:
        await producer.send("t", b"first")
        await producer.send_many("t", numbered(200))
        await producer.send("t", b"last")
    assert cluster.logs[0].values == [b"first", *numbered(200), b"last"]


async def test_all_of_a_record_arrives():
    cluster = ScriptedCluster(partitions=2)
    async with producing(cluster, value_serializer=json_bytes) as producer:
        await producer.send("t", 1, partition=1)
        await producer.send_many(
            "t",
            [{"n": 1}, None],
            keys=["é", None],
            partition=1,
            headers=[("trace", b"1")],
            timestamp_ms=7,
        )
    headers = [("trace", b"1")]
    assert cluster.logs[1].records == [
        (0, NOW_MS, None, b"1", None),
        (1, 7, "é".encode(), b'{"n":1}', headers),
        (2, 7, None, None, headers),
    ]


async def test_the_callers_own_rule_is_asked_for_each_record():
    cluster = ScriptedCluster(partitions=2)
    async with producing(cluster, partitioner=lambda key, value, _: int(value) % 2) as producer:
        await producer.send_many("t", [b"0", b"1", b"2"])
    assert [cluster.logs[p].values for p in range(2)] == [[b"0", b"2"], [b"1"]]


async def test_no_records_are_delivered_at_once():
    async with producing(ScriptedCluster()) as producer:
        called = []
        deliveries = await producer.send_many("t", [], on_delivery=called.append)
        assert deliveries.is_done
        assert called == [deliveries]
        assert list(await deliveries) == []


# -- all or none -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "what"),
    [
        ({"values": [b"a", 5]}, BadRecordError, "value 1: int is neither"),
        ({"values": [b"a", b"b"], "keys": [b"k", 5]}, BadRecordError, "key 1: int is neither"),
        ({"values": [b"a", b"b"], "keys": [b"k"]}, BadRecordError, "1 keys for 2 values"),
        ({"values": [b"a"], "headers": [("h", 5)]}, BadRecordError, "header 'h'"),
        ({"values": [b"a"], "timestamp_ms": -1}, BadRecordError, "timestamp_ms=-1"),
        ({"values": [b"a"], "partition": 9}, BadRecordError, "partitions 0 to 0, not 9"),
        ({"values": b"text"}, BadRecordError, "a list of values"),
        ({"values": [b"a", b"x" * (9 << 20)]}, RecordTooLargeError, "above what t takes"),
        ({"values": [b"x" * (1 << 20)] * 33}, RecordTooLargeError, "send them in parts"),
    ],
)
async def test_with_one_that_cannot_be_sent_none_is(given, error, what):
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        with pytest.raises(error, match=what):
            await producer.send_many("t", **given)
    assert cluster.logs[0].values == []


async def test_a_topic_that_is_not_there_is_an_error_at_send():
    async with producing(ScriptedCluster(partitions=0)) as producer:
        with pytest.raises(TargetNotFoundError):
            await producer.send_many("t", [b"v"])


async def test_a_closed_producer_takes_none():
    async with producing(ScriptedCluster()) as producer:
        await producer.close()
        with pytest.raises(ClientClosedError):
            await producer.send_many("t", [b"v"])


async def test_they_wait_for_room_for_all_of_them():
    cluster = ScriptedCluster()
    async with producing(cluster, batch_bytes=1024, buffer_bytes=4096) as producer:
        for _ in range(20):
            await producer.send_many("t", numbered(100))
            assert producer.buffered_bytes <= 4096
    assert cluster.logs[0].values == numbered(100) * 20


async def test_without_room_none_is_taken():
    cluster = ScriptedCluster()
    cluster.logs[0].script = [not_now() for _ in range(1000)]
    options = {"batch_bytes": 1024, "buffer_bytes": 2048, "max_block_ms": 0}
    async with producing(cluster, delivery_timeout_ms=3000, **options) as producer:
        await producer.send_many("t", numbered(50))
        with pytest.raises(BufferFullError):
            await producer.send_many("t", numbered(50))
        cluster.logs[0].script = []
    assert cluster.logs[0].values in ([], numbered(50))


# -- outcomes ----------------------------------------------------------------------------------------


async def test_each_record_has_an_outcome_of_its_own():
    cluster = ScriptedCluster(partitions=2)
    cluster.logs[1].script = [TooLargeError("too large", status=413, error_code=41301)] * 10
    values = [b"a", b"b", b"c", b"d"]
    async with producing(cluster, partitioner=lambda key, value, _: value == b"c") as producer:
        deliveries = await producer.send_many("t", values)
        assert deliveries.outcomes is None
        with pytest.raises(RecordTooLargeError):
            await deliveries
        kinds = [type(outcome).__name__ for outcome in deliveries.outcomes]
    assert kinds == ["Receipt", "Receipt", "RecordTooLargeError", "Receipt"]
    assert [(run.partition, run.places, run.base_offset) for run in deliveries.runs] == [
        (0, [0, 1, 3], 0),
        (1, [2], None),
    ]


async def test_a_batch_that_was_split_has_the_outcomes_of_its_parts():
    cluster = ScriptedCluster()
    # The whole, and its second half's first record, are refused for their size.
    too_large = TooLargeError("too large", status=413, error_code=41301)
    cluster.logs[0].script = [too_large, "ok", too_large, too_large, "ok"]
    async with producing(cluster) as producer:
        deliveries = await producer.send_many("t", [b"a", b"b", b"c", b"d"])
        await producer.flush()
    kinds = [type(outcome).__name__ for outcome in deliveries.outcomes]
    assert kinds == ["Receipt", "Receipt", "RecordTooLargeError", "Receipt"]
    assert [list(run.places) for run in deliveries.runs] == [[0, 1], [2], [3]]
    assert [run.base_offset for run in deliveries.runs] == [0, None, 2]


async def test_the_callback_comes_once_when_all_have_their_outcome():
    cluster = ScriptedCluster(partitions=3)
    called = []
    async with producing(cluster, batch_bytes=1024) as producer:
        deliveries = await producer.send_many(
            "t", numbered(500), on_delivery=lambda done: called.append((done, done.is_done))
        )
        assert not called
    assert called == [(deliveries, True)]


async def test_a_callback_that_fails_stops_nobody():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        await producer.send_many("t", [b"a"], on_delivery=lambda _: 1 // 0)
        await (await producer.send("t", b"b"))
    assert cluster.logs[0].values == [b"a", b"b"]


async def test_what_was_lost_on_the_way_is_written_once():
    cluster = ScriptedCluster()
    cluster.logs[0].script = ["lost answer", "lost request", "ok", "lost answer"]
    async with producing(cluster, batch_bytes=1024) as producer:
        await (await producer.send_many("t", numbered(200)))
    assert cluster.logs[0].values == numbered(200)


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
async def test_a_record_without_a_key_is_refused_before_it_spoils_the_batch_of_others(policy):
    cluster = ScriptedCluster(**{"cleanup.policy": policy})
    async with producing(cluster, linger_ms=1_000) as producer:
        first = await producer.send("t", b"1", key=b"a")
        with pytest.raises(BadRecordError, match="the record has no key, but t is compacted"):
            await producer.send("t", b"2")
        last = await producer.send("t", b"3", key=b"c")
        with pytest.raises(BadRecordError, match="record 1 has no key, but t is compacted"):
            await producer.send_many("t", [b"4", b"5"], keys=[b"d", None])
        with pytest.raises(BadRecordError, match="record 0 has no key"):
            await producer.send_many("t", [b"6"])
        await producer.flush()
        assert [(await one).offset for one in (first, last)] == [0, 1]
    assert cluster.logs[0].values == [b"1", b"3"]


async def test_a_handle_that_is_kept_keeps_no_values():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        deliveries = await producer.send_many("t", numbered(10))
        await deliveries
    assert all(part.batch.columns(0, 10)[0].values == [] for part in deliveries.parts)


async def test_any_thread_may_offer_them():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        await producer.learn_topic("t", None)
        records = producer.outgoing([b"a", b"b"], None, (), None)
        offered = []
        thread = threading.Thread(
            target=lambda: offered.append(producer.offer_many("t", records, None, None))
        )
        thread.start()
        await asyncio.to_thread(thread.join)
        receipts = await offered[0]
    assert [receipt.offset for receipt in receipts] == [0, 1]
