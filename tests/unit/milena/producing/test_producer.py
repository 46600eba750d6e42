"""The producer against a scripted cluster: what is in the logs, and what the sender of each record was told."""

import asyncio
import threading
from contextlib import asynccontextmanager
from random import Random

import pytest

from milena.cluster.transport import AppendAnswer
from milena.errors import (
    AnswerError,
    BadRecordError,
    BufferFullError,
    ClientClosedError,
    DeliveryTimeoutError,
    NotPermittedError,
    ProducerFencedError,
    RecordTooLargeError,
    ServerFailedError,
    TargetNotFoundError,
    UnexpectedAnswerError,
    UnknownResultError,
    UnreachableError,
)
from milena.producing.options import ProducerOptions
from milena.producing.producer import Producer
from milena.producing.serializers import json_bytes
from storage.state.producer_state import ProducerStates
from tests.support.fakes.scripted_cluster import (
    NOW_MS,
    ScriptedClock,
    ScriptedCluster,
    not_now,
    unknown,
)
from tests.support.time.virtual_time import LoopClock, virtual


def new_producer(cluster, clock=None, **options):
    options = {"linger_ms": 0, **options}
    return Producer(
        ProducerOptions(**options),
        transport=cluster,
        metadata=cluster,
        clock=clock or ScriptedClock(),
        chance=Random(1),
    )


@asynccontextmanager
async def producing(cluster, **options):
    async with new_producer(cluster, **options) as producer:
        yield producer


# -- sending -----------------------------------------------------------------------------------------


async def test_a_receipt_names_where_the_record_is():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        first = await producer.send("t", b"one")
        second = await producer.send("t", b"two", timestamp_ms=NOW_MS - 5)
        receipts = [await first, await second]
    assert [(r.topic, r.partition, r.offset) for r in receipts] == [("t", 0, 0), ("t", 0, 1)]
    assert [r.timestamp_ms for r in receipts] == [NOW_MS, NOW_MS - 5]
    assert cluster.logs[0].values == [b"one", b"two"]


async def test_what_is_sent_in_one_turn_travels_together():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        await producer.flush()
        await asyncio.gather(*[producer.send("t", b"%d" % n) for n in range(50)])
    assert len(cluster.logs[0].attempts) == 1


async def test_all_of_a_record_arrives():
    cluster = ScriptedCluster()
    headers = [("trace", b"1"), ("trace", None)]
    async with producing(cluster) as producer:
        await producer.send("t", b"plain")
        await producer.send("t", None, key=b"gone", headers=headers, timestamp_ms=7)
    rows = cluster.logs[0].records
    assert rows == [
        (0, NOW_MS, None, b"plain", None),
        (1, 7, b"gone", None, [("trace", b"1"), ("trace", None)]),
    ]


async def test_a_record_that_nobody_waits_for_is_delivered():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        for n in range(10):
            await producer.send("t", b"%d" % n)
    assert cluster.logs[0].values == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "zstd"])
async def test_batches_are_compressed_on_another_thread(compression):
    cluster = ScriptedCluster()
    async with producing(cluster, compression=compression) as producer:
        await asyncio.gather(*[producer.send("t", b"x" * 1000) for _ in range(100)])
    assert cluster.logs[0].values == [b"x" * 1000] * 100
    is_smaller = len(cluster.logs[0].attempts[0]) < 50_000
    assert is_smaller == (compression != "none")


async def test_serializers_make_bytes_of_keys_and_values():
    cluster = ScriptedCluster()
    async with producing(cluster, value_serializer=json_bytes) as producer:
        await producer.send("t", {"n": 1}, key="ключ")
        await producer.send("t", None)
    assert [record[2:4] for record in cluster.logs[0].records] == [
        ("ключ".encode(), b'{"n":1}'),
        (None, None),
    ]


# -- partitions --------------------------------------------------------------------------------------


async def test_a_key_always_goes_to_its_partition():
    cluster = ScriptedCluster(partitions=5)
    async with producing(cluster) as producer:
        deliveries = [await producer.send("t", b"v", key=b"k%d" % (n % 7)) for n in range(70)]
        receipts = [await delivery for delivery in deliveries]
    partitions = {}
    for number, receipt in enumerate(receipts):
        assert partitions.setdefault(number % 7, receipt.partition) == receipt.partition
    assert len(set(partitions.values())) > 1


async def test_keyless_records_fill_a_batch_and_then_go_on_to_the_next_partition():
    cluster = ScriptedCluster(partitions=3)
    async with producing(cluster, batch_bytes=1024, linger_ms=1000) as producer:
        for n in range(3 * 39):
            await producer.send("t", b"%010d" % n)
    # 26 bytes a record, 39 of them in 1024.
    assert [len(cluster.logs[p].records) for p in range(3)] == [39, 39, 39]
    assert [len(cluster.logs[p].attempts) for p in range(3)] == [1, 1, 1]


async def test_a_named_partition_wins_over_the_key():
    cluster = ScriptedCluster(partitions=4)
    async with producing(cluster) as producer:
        for partition in range(4):
            await producer.send("t", b"v", key=b"same", partition=partition)
    assert [len(cluster.logs[p].records) for p in range(4)] == [1, 1, 1, 1]


async def test_a_partitioner_sees_the_record_and_the_topology():
    cluster = ScriptedCluster(partitions=4)
    seen = []

    def rule(key, value, topology):
        seen.append((key, value, topology.partition_count, len(topology.nodes)))
        assert topology.topic.partitions[0].leader == 1
        return 2

    async with producing(cluster, partitioner=rule) as producer:
        await producer.send("t", b"v", key=b"k")
    assert seen == [(b"k", b"v", 4, 3)]
    assert cluster.logs[2].values == [b"v"]


@pytest.mark.parametrize("chosen", [4, -1, None, "2"])
async def test_a_partitioner_that_is_wrong_is_told_so(chosen):
    cluster = ScriptedCluster(partitions=4)
    async with producing(cluster, partitioner=lambda *_: chosen) as producer:
        with pytest.raises(BadRecordError, match="partitioner chose"):
            await producer.send("t", b"v")


async def test_a_partitioner_that_fails_is_told_so():
    cluster = ScriptedCluster()
    async with producing(cluster, partitioner=lambda *_: 1 // 0) as producer:
        with pytest.raises(BadRecordError, match="ZeroDivisionError"):
            await producer.send("t", b"v")


async def test_new_partitions_are_used_once_they_are_known():
    cluster = ScriptedCluster(partitions=1)
    async with producing(cluster) as producer:
        await (await producer.send("t", b"v"))
        cluster.set_partitions(3)
        for _ in range(9):
            await (await producer.send("t", b"v"))
    assert min(len(cluster.logs[p].records) for p in range(3)) >= 3


async def test_a_partition_beyond_the_known_ones_is_looked_for():
    cluster = ScriptedCluster(partitions=1)
    async with producing(cluster) as producer:
        await producer.send("t", b"v")
        cluster.partition_count = 2
        await producer.send("t", b"new", partition=1)
        with pytest.raises(BadRecordError, match="partitions 0 to 1, not 7"):
            await producer.send("t", b"v", partition=7)
        with pytest.raises(BadRecordError, match="not -1"):
            await producer.send("t", b"v", partition=-1)
    assert cluster.logs[1].values == [b"new"]


async def test_a_topic_that_is_not_there_is_an_error_at_send():
    cluster = ScriptedCluster(partitions=0)
    async with producing(cluster) as producer:
        with pytest.raises(TargetNotFoundError):
            await producer.send("t", b"v")


async def test_a_topic_is_made_where_nodes_do_that():
    cluster = ScriptedCluster(partitions=0)
    cluster.makes_topics = True
    async with producing(cluster) as producer:
        await producer.send("t", b"v")
    assert cluster.logs[0].values == [b"v"]


async def test_a_topic_that_was_deleted_is_an_error_again():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        await producer.send("t", b"v")
        cluster.set_partitions(0)
        with pytest.raises(TargetNotFoundError):
            await producer.send("t", b"v")


# -- failures ----------------------------------------------------------------------------------------


async def test_a_refusal_that_may_pass_is_tried_again_with_the_same_bytes():
    cluster = ScriptedCluster()
    cluster.logs[0].script = [not_now(), UnreachableError("refused"), not_now()]
    clock = ScriptedClock()
    async with new_producer(cluster, clock) as producer:
        receipt = await (await producer.send("t", b"v"))
    assert receipt.offset == 0
    assert len(set(cluster.logs[0].attempts)) == 1
    assert cluster.stale_marks == 3
    assert [round(ms / 50) for ms in clock.slept] == [1, 2, 4]


@pytest.mark.parametrize("script", [["lost answer"], ["lost request"], ["lost answer"] * 3])
async def test_an_idempotent_record_is_written_once_whatever_was_lost(script):
    cluster = ScriptedCluster()
    cluster.logs[0].script = list(script)
    async with producing(cluster) as producer:
        receipt = await (await producer.send("t", b"v"))
        after = await (await producer.send("t", b"w"))
    assert (receipt.offset, after.offset) == (0, 1)
    assert cluster.logs[0].values == [b"v", b"w"]
    assert len(set(cluster.logs[0].attempts)) == 2


@pytest.mark.parametrize(
    "error",
    [
        unknown(),
        ServerFailedError("bug", status=500, error_code=500),
        UnexpectedAnswerError("garbage"),
    ],
)
async def test_without_sequences_an_unknown_result_is_reported_and_not_tried_again(error):
    cluster = ScriptedCluster()
    cluster.logs[0].script = [error]
    async with producing(cluster, idempotent=False) as producer:
        delivery = await producer.send("t", b"v")
        with pytest.raises(UnknownResultError, match="not known whether 1 records"):
            await delivery
    assert len(cluster.logs[0].attempts) == 1
    assert cluster.identities == 0


async def test_without_sequences_a_certain_refusal_is_tried_again():
    cluster = ScriptedCluster()
    cluster.logs[0].script = [not_now()]
    async with producing(cluster, idempotent=False) as producer:
        assert (await (await producer.send("t", b"v"))).offset == 0


async def test_a_record_that_was_never_written_in_time_is_known_not_to_be():
    cluster = ScriptedCluster()
    cluster.logs[0].script = [not_now() for _ in range(100)]
    async with producing(cluster, delivery_timeout_ms=3000) as producer:
        delivery = await producer.send("t", b"late")
        with pytest.raises(DeliveryTimeoutError, match="not written within 3000 ms: no leader"):
            await delivery
        cluster.logs[0].script = []
        assert (await (await producer.send("t", b"next"))).offset == 0
    assert cluster.logs[0].values == [b"next"]
    # Its sequence was not used, and is the next record's.
    assert cluster.identities == 1


@virtual
async def test_a_record_waits_for_a_producer_id_no_longer_than_for_its_delivery():
    cluster, clock = ScriptedCluster(), LoopClock()
    cluster.identity_failures = ["hang"]
    async with new_producer(cluster, clock, delivery_timeout_ms=3000) as producer:
        began_ms = clock.now_ms()
        delivery = await producer.send("t", b"late")
        with pytest.raises(
            DeliveryTimeoutError, match=r"not written within 3000 ms: .* producer id"
        ):
            await delivery
        assert clock.now_ms() - began_ms == pytest.approx(3000, abs=10)
    assert cluster.logs[0].attempts == []


@pytest.mark.parametrize("lost", ["lost answer", "lost request"])
async def test_after_an_unknown_result_the_lane_goes_on_under_another_id(lost):
    cluster = ScriptedCluster()
    cluster.logs[0].script = ["ok", lost, *[not_now() for _ in range(100)]]
    async with producing(cluster, delivery_timeout_ms=3000) as producer:
        await (await producer.send("t", b"first"))
        doubtful = await producer.send("t", b"doubtful")
        with pytest.raises(UnknownResultError, match="not known whether 1 records"):
            await doubtful
        cluster.logs[0].script = []
        await (await producer.send("t", b"next"))
        await (await producer.send("t", b"last"))
    assert cluster.identities == 2
    written = [b"doubtful"] if lost == "lost answer" else []
    assert cluster.logs[0].values == [b"first", *written, b"next", b"last"]


async def test_a_log_that_lost_earlier_batches_gets_the_next_under_another_id():
    """As after acks=1 and the death of the leader: the new one has never heard of the producer."""
    cluster = ScriptedCluster()
    async with producing(cluster, acks=1) as producer:
        await (await producer.send("t", b"lost"))
        log = cluster.logs[0]
        log.records.clear()
        log.producers = ProducerStates()
        await (await producer.send("t", b"kept"))
    assert log.values == [b"kept"]
    assert cluster.identities == 2


async def test_a_lane_that_takes_another_id_does_not_disturb_the_others():
    cluster = ScriptedCluster(partitions=2)
    async with producing(cluster) as producer:
        for partition in (0, 1):
            await (await producer.send("t", b"a", partition=partition))
        cluster.logs[0].producers = ProducerStates()
        for partition in (0, 1, 0, 1):
            await (await producer.send("t", b"b", partition=partition))
    assert cluster.logs[0].values == cluster.logs[1].values == [b"a", b"b", b"b"]
    assert cluster.identities == 2


async def test_a_refusal_is_told_as_it_was_and_the_next_record_is_written():
    cluster = ScriptedCluster()
    refusal = AnswerError("bad timestamp", status=422, error_code=42208)
    cluster.logs[0].script = [refusal]
    async with producing(cluster) as producer:
        with pytest.raises(AnswerError) as caught:
            await (await producer.send("t", b"v"))
        assert caught.value is refusal
        assert (await (await producer.send("t", b"w"))).offset == 0
    assert cluster.identities == 1


async def test_a_fenced_producer_stops():
    cluster = ScriptedCluster()
    cluster.logs[0].script = [ProducerFencedError("taken over", status=409, error_code=40924)]
    async with producing(cluster) as producer:
        for _ in range(2):
            with pytest.raises(ProducerFencedError):
                await (await producer.send("t", b"v"))
    assert len(cluster.logs[0].attempts) == 1


async def test_the_id_is_asked_for_until_it_comes():
    cluster = ScriptedCluster()
    cluster.identity_failures = [not_now(), unknown(), UnreachableError("refused")]
    async with producing(cluster) as producer:
        assert (await (await producer.send("t", b"v"))).offset == 0
    assert cluster.identities == 1


async def test_who_may_write_to_no_topic_is_told_to_which_nothing_was_written():
    cluster = ScriptedCluster()
    told = "User:ann may not WRITE TOPIC of any name"
    cluster.identity_failures = [NotPermittedError(told, status=403, error_code=40301)]
    async with producing(cluster) as producer:
        with pytest.raises(NotPermittedError, match=f"{told}; nothing was written to t") as refused:
            await (await producer.send("t", b"v"))
    assert (refused.value.status, refused.value.error_code) == (403, 40301)


async def test_records_without_an_id_in_time_were_not_written():
    cluster = ScriptedCluster()
    cluster.identity_failures = [unknown() for _ in range(100)]
    async with producing(cluster, delivery_timeout_ms=2000) as producer:
        with pytest.raises(DeliveryTimeoutError):
            await (await producer.send("t", b"v"))


async def test_an_answer_that_cannot_be_true_is_not_believed():
    cluster = ScriptedCluster()
    log = cluster.logs[0]
    real, lies = log.append, [(5, 9), (None, None), (-1, -1)]

    def append(batch, if_match):
        answer = real(batch)
        if not lies:
            return answer
        base, last = lies.pop()
        return AppendAnswer(base_offset=base, last_offset=last, is_duplicate=False)

    log.append = append
    async with producing(cluster) as producer:
        assert (await (await producer.send("t", b"v"))).offset == 0
    assert len(log.attempts) == 4
    assert log.values == [b"v"]


async def test_a_bug_in_the_client_leaves_no_record_without_an_outcome(caplog):
    cluster = ScriptedCluster()
    cluster.logs[0].script = [ValueError("a bug")]
    async with producing(cluster) as producer:
        with pytest.raises(UnknownResultError, match="a bug"):
            await (await producer.send("t", b"v"))
        await (await producer.send("t", b"next"))
    assert "send failed" in caplog.text
    assert cluster.logs[0].values == [b"next"]


async def test_acks_0_asks_nobody():
    cluster = ScriptedCluster()
    async with producing(cluster, acks=0) as producer:
        receipt = await (await producer.send("t", b"v"))
    assert receipt.offset is None
    assert cluster.identities == 0


async def test_records_of_a_partition_keep_their_order_through_failures():
    cluster = ScriptedCluster()
    steps = ["lost answer", not_now(), "ok", "lost request"] * 10
    cluster.logs[0].script = steps
    async with producing(cluster, batch_bytes=1024) as producer:
        for n in range(500):
            await producer.send("t", b"%030d" % n)
    assert cluster.logs[0].values == [b"%030d" % n for n in range(500)]


async def test_a_leader_that_hangs_is_left_when_there_is_another(monkeypatch):
    monkeypatch.setattr("milena.producing.sender.STALL_MS", 1)
    cluster = ScriptedCluster()
    cluster.logs[0].script = ["hang"]

    async def refresh():
        cluster.leader_epochs[0] += 1

    cluster.refresh = refresh
    async with producing(cluster) as producer:
        assert (await (await producer.send("t", b"v"))).offset == 0
    assert cluster.logs[0].values == [b"v"]
    assert len(cluster.logs[0].attempts) == 2


async def test_a_slow_leader_that_still_leads_is_waited_for(monkeypatch):
    monkeypatch.setattr("milena.producing.sender.STALL_MS", 1)
    cluster = ScriptedCluster()
    answer = asyncio.Event()
    real = cluster._answer

    async def slow(*args):
        await answer.wait()
        return await real(*args)

    cluster._answer = slow
    looked = asyncio.Event()

    async def refresh():
        looked.set()

    cluster.refresh = refresh
    async with producing(cluster) as producer:
        delivery = await producer.send("t", b"v")
        await looked.wait()
        answer.set()
        assert (await delivery).offset == 0
    assert len(cluster.logs[0].attempts) == 1


# -- sizes -------------------------------------------------------------------------------------------


async def test_a_batch_that_the_topic_refuses_for_its_size_is_split():
    cluster = ScriptedCluster()
    cluster.logs[0].bytes_max = 700
    values = [b"%050d" % n for n in range(100)]
    async with producing(cluster) as producer:
        deliveries = await asyncio.gather(*[producer.send("t", value) for value in values])
        receipts = [await delivery for delivery in deliveries]
    assert [receipt.offset for receipt in receipts] == list(range(100))
    assert cluster.logs[0].values == values
    assert cluster.identities == 1


async def test_a_single_record_that_the_topic_refuses_is_too_large_and_others_are_not():
    cluster = ScriptedCluster()
    cluster.logs[0].bytes_max = 700
    values = [b"a" * 50, b"b" * 1000, b"c" * 50]
    async with producing(cluster) as producer:
        deliveries = await asyncio.gather(*[producer.send("t", value) for value in values])
        with pytest.raises(RecordTooLargeError, match="t-0"):
            await deliveries[1]
        assert (await deliveries[0]).offset == 0
        assert (await deliveries[2]).offset == 1


async def test_a_split_batch_whose_half_is_lost_tells_each_record_its_own():
    cluster = ScriptedCluster()
    log = cluster.logs[0]
    log.bytes_max = 400
    log.script = ["ok", "ok", "lost answer", *[not_now() for _ in range(100)]]
    async with producing(cluster, delivery_timeout_ms=3000) as producer:
        deliveries = await asyncio.gather(*[producer.send("t", b"%0100d" % n) for n in range(4)])
        assert [(await d).offset for d in deliveries[:2]] == [0, 1]
        for delivery in deliveries[2:]:
            with pytest.raises(UnknownResultError):
                await delivery


async def test_a_record_above_what_the_topic_is_known_to_take_is_refused_at_send():
    cluster = ScriptedCluster(**{"max.message.bytes": "2000"})
    async with producing(cluster) as producer:
        with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
            await producer.send("t", b"x" * 2000)
        await producer.send("t", b"x" * 1800)
    assert len(cluster.logs[0].records) == 1


async def test_a_record_above_the_buffer_is_refused_at_send():
    cluster = ScriptedCluster()
    async with producing(cluster, batch_bytes=1024, buffer_bytes=4096) as producer:
        with pytest.raises(RecordTooLargeError, match="buffer_bytes=4096"):
            await producer.send("t", b"x" * 5000)


async def test_a_record_larger_than_a_batch_travels_alone():
    cluster = ScriptedCluster()
    async with producing(cluster, batch_bytes=1024, linger_ms=1000) as producer:
        for size in (10, 5000, 10):
            await producer.send("t", b"x" * size)
    assert [len(v) for v in cluster.logs[0].values] == [10, 5000, 10]
    assert len(cluster.logs[0].attempts) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": 7}, "the value: int is neither bytes nor text"),
        ({"value": "\ud800"}, "the value: the text is not valid Unicode"),
        ({"value": b"", "key": 1.5}, "the key: float"),
        ({"value": b"", "headers": [("h", "text")]}, "header 'h'"),
        ({"value": b"", "headers": [("\ud800", b"")]}, "not valid Unicode"),
        ({"value": b"", "headers": [("h", b"")] * 1025}, "at most 1024 headers"),
        ({"value": b"", "headers": {"id": b""}}, "give pairs of a name and bytes, as"),
        ({"value": b"", "headers": [("h", b"", b"")]}, "give pairs of a name and bytes"),
        ({"value": b"", "headers": 5}, "headers=5: give pairs of a name and bytes"),
        ({"value": b"", "partition": "0"}, "partition='0' must be a whole number"),
        ({"value": b"", "partition": 0.0}, "partition=0.0 must be a whole number"),
        ({"value": b"", "timestamp_ms": -1}, "timestamp_ms=-1"),
        ({"value": b"", "timestamp_ms": 1.5}, "timestamp_ms=1.5 must be a whole number of ms"),
        ({"value": b"", "if_match": 1.5}, "if_match=1.5 is not an offset"),
        ({"value": b"", "timestamp_ms": NOW_MS + 3_700_000}, "too far ahead"),
    ],
)
async def test_a_bad_record_is_refused_at_send_and_harms_no_other(arguments, message):
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        await producer.send("t", b"before")
        with pytest.raises(BadRecordError, match=message):
            await producer.send("t", **arguments)
        await producer.send("t", b"after")
    assert cluster.logs[0].values == [b"before", b"after"]


@pytest.mark.parametrize("topic", [None, 7, b"t"])
async def test_a_topic_that_is_no_text_is_refused(topic):
    async with producing(ScriptedCluster()) as producer:
        with pytest.raises(BadRecordError, match="a topic's name is text"):
            await producer.send(topic, b"v")


@pytest.mark.parametrize("is_known", [True, False])
async def test_many_records_for_a_partition_that_is_no_number_are_refused(is_known):
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        if is_known:
            await producer.send("t", b"before")
        with pytest.raises(BadRecordError, match="partition='0' must be a whole number"):
            await producer.send_many("t", [b"v"], partition="0")
    assert cluster.logs[0].values == [b"before"] * is_known


async def test_a_producer_that_was_not_opened_says_how_that_is_done():
    with pytest.raises(ClientClosedError, match="not open: use it in a block"):
        await new_producer(ScriptedCluster()).send("t", b"v")


# -- the buffer --------------------------------------------------------------------------------------


async def test_send_waits_for_room_and_gets_it_in_order():
    cluster = ScriptedCluster()
    async with producing(cluster, batch_bytes=1024, buffer_bytes=2048, linger_ms=5000) as producer:
        sends = [producer.send("t", b"%0500d" % n) for n in range(20)]
        await asyncio.gather(*sends)
    assert cluster.logs[0].values == [b"%0500d" % n for n in range(20)]


async def test_no_room_in_time_is_an_error_and_nothing_was_taken():
    cluster = ScriptedCluster()
    cluster.logs[0].script = ["hang"]
    options = {"batch_bytes": 1024, "buffer_bytes": 1024, "max_block_ms": 5}
    async with new_producer(cluster, **options) as producer:
        delivery = await producer.send("t", b"x" * 900)
        with pytest.raises(BufferFullError, match="buffer of 1024 bytes was full for 5 ms"):
            await producer.send("t", b"y" * 900)
        await producer.close(timeout_ms=0)
        with pytest.raises(UnknownResultError):
            await delivery
    assert cluster.logs[0].values == [b"x" * 900]


async def test_a_cancelled_send_takes_nothing():
    cluster = ScriptedCluster()
    cluster.logs[0].script = ["hang"]
    producer = new_producer(cluster, batch_bytes=1024, buffer_bytes=1024)
    async with producer:
        await producer.send("t", b"x" * 900)
        waiting = asyncio.create_task(producer.send("t", b"y" * 900))
        for _ in range(5):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        assert not producer._room_waiters
        await producer.close(timeout_ms=0)
    assert cluster.logs[0].values == [b"x" * 900]


async def test_a_cancelled_wait_for_a_delivery_takes_nothing_back():
    cluster = ScriptedCluster()
    async with producing(cluster, linger_ms=1000) as producer:
        delivery = await producer.send("t", b"v")

        async def wait():
            await delivery

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
    assert (await delivery).offset == 0


# -- callbacks ---------------------------------------------------------------------------------------


async def test_callbacks_hear_of_receipts_and_errors_in_order_before_flush_returns():
    cluster = ScriptedCluster()
    cluster.logs[0].script = ["ok", AnswerError("no", status=422, error_code=1)]
    heard = []
    async with producing(cluster) as producer:
        for n in range(2):
            await producer.send("t", b"%d" % n, on_delivery=lambda r, e: heard.append((r, e)))
        await producer.flush()
        assert [(r.offset, e) for r, e in heard] == [(0, None), (1, None)]
        await producer.send("t", b"2", on_delivery=lambda r, e: heard.append((r, e)))
        await producer.flush()
    assert heard[2][0] is None
    assert isinstance(heard[2][1], AnswerError)


async def test_a_callback_that_fails_is_logged_and_breaks_nothing(caplog):
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        first = await producer.send("t", b"a", on_delivery=lambda *_: 1 // 0)
        second = await producer.send("t", b"b")
        assert ((await first).offset, (await second).offset) == (0, 1)
    assert "ZeroDivisionError" in caplog.text


async def test_a_callback_may_send():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        later = []

        def again(receipt, error):
            later.append(asyncio.get_running_loop().create_task(producer.send("t", b"again")))

        await producer.send("t", b"first", on_delivery=again)
        await producer.flush()
        await later[0]
    assert cluster.logs[0].values == [b"first", b"again"]


# -- flush and close ---------------------------------------------------------------------------------


async def test_flush_does_not_wait_for_the_linger():
    cluster = ScriptedCluster()
    async with producing(cluster, linger_ms=60_000) as producer:
        delivery = await producer.send("t", b"v")
        assert not delivery.is_done
        assert delivery.outcome is None
        await producer.flush()
        assert delivery.is_done
        assert delivery.outcome.offset == 0


async def test_the_linger_sends_by_itself():
    cluster = ScriptedCluster()
    clock = ScriptedClock()
    async with new_producer(cluster, clock, linger_ms=2) as producer:
        delivery = await producer.send("t", b"v")
        clock.monotonic_ms += 2
        assert (await delivery).offset == 0


async def test_flush_waits_for_what_fails_too():
    cluster = ScriptedCluster()
    cluster.logs[0].script = [AnswerError("no", status=422, error_code=1)]
    async with producing(cluster) as producer:
        delivery = await producer.send("t", b"v")
        await producer.flush()
        assert isinstance(delivery.outcome, AnswerError)


async def test_a_closed_producer_takes_nothing_and_may_be_closed_again():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        await producer.send("t", b"v")
        await producer.close()
        with pytest.raises(ClientClosedError):
            await producer.send("t", b"w")
        with pytest.raises(ClientClosedError):
            await producer.send("unknown", b"w")
        await producer.close()
    assert cluster.logs[0].values == [b"v"]
    assert not cluster.listeners


async def test_close_reports_what_it_could_not_deliver():
    cluster = ScriptedCluster()
    cluster.logs[0].script = ["hang"]
    async with producing(cluster) as producer:
        under_way = await producer.send("t", b"under way")
        await asyncio.sleep(0)
        while not cluster.logs[0].in_flight:
            await asyncio.sleep(0)
        waiting = await producer.send("t", b"waiting")
        await producer.close(timeout_ms=0)
        with pytest.raises(UnknownResultError):
            await under_way
        with pytest.raises(ClientClosedError):
            await waiting


async def test_nothing_is_sent_any_more_once_close_gives_up():
    cluster = ScriptedCluster(partitions=2)
    cluster.logs[0].script = ["hang"]
    async with producing(cluster) as producer:
        await producer.send("t", b"under way", partition=0)
        while not cluster.logs[0].in_flight:
            await asyncio.sleep(0)
        # Its lane is looked at in the next turn, while close waits for the first one to end.
        late = await producer.send("t", b"late", partition=1)
        await producer._abort()
        assert isinstance(late.outcome, ClientClosedError)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not cluster.logs[1].attempts


async def test_what_was_about_to_be_sent_when_close_gave_up_is_reported_too():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        delivery = await producer.send("t", b"v")
        producer._send_all()
        await producer._abort()
        assert isinstance(delivery.outcome, ClientClosedError)
    assert not cluster.logs[0].attempts


async def test_a_close_that_is_cancelled_reports_all_the_same():
    cluster = ScriptedCluster()
    cluster.logs[0].script = ["hang"]
    async with producing(cluster) as producer:
        delivery = await producer.send("t", b"v")
        closing = asyncio.create_task(producer.close())
        while not cluster.logs[0].in_flight:
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})
        assert isinstance(delivery.outcome, UnknownResultError)


async def test_who_waits_for_room_when_the_producer_closes_is_told():
    cluster = ScriptedCluster()
    cluster.logs[0].script = ["hang"]
    async with producing(cluster, batch_bytes=1024, buffer_bytes=1024) as producer:
        await producer.send("t", b"x" * 900)
        waiting = asyncio.create_task(producer.send("t", b"y" * 900))
        while not producer._room_waiters:
            await asyncio.sleep(0)
        await producer.close(timeout_ms=0)
        with pytest.raises(ClientClosedError):
            await waiting


# -- other threads -----------------------------------------------------------------------------------


async def test_records_offered_by_other_threads_are_all_written_in_each_ones_order():
    cluster = ScriptedCluster()
    async with producing(cluster, linger_ms=1) as producer:
        await producer.learn_topic("t", None)

        def work(who):
            for n in range(500):
                producer.offer("t", b"%d-%d" % (who, n), None, None, (), None, None, None)

        threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            await asyncio.sleep(0)
    for who in range(4):
        mine = [v for v in cluster.logs[0].values if v.startswith(b"%d-" % who)]
        assert mine == [b"%d-%d" % (who, n) for n in range(500)]
