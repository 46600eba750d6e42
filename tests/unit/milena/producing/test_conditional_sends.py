"""Records that name the offset where they are to be: written there or not at all, and told as it is."""

import pytest

from milena.errors import (
    BadRecordError,
    ConditionFailedError,
    DeliveryTimeoutError,
    UnknownResultError,
)
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns
from tests.support.fakes.scripted_cluster import NOW_MS, ScriptedCluster, not_now
from tests.unit.milena.producing.test_producer import producing


async def outcome(delivery):
    try:
        return (await delivery).offset
    except ConditionFailedError as error:
        return error.end_offset, type(error)


async def test_it_is_written_if_the_partition_ends_there():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        for offset in range(3):
            receipt = await (await producer.send("t", b"v", partition=0, if_match=offset))
            assert receipt.offset == offset


async def test_else_it_is_not_written_and_the_end_is_told():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        await (await producer.send("t", b"before"))
        for if_match in (0, 2):
            delivery = await producer.send("t", b"v", partition=0, if_match=if_match)
            assert await outcome(delivery) == (1, ConditionFailedError)
        assert len(cluster.logs[0].attempts) == 3, "nobody tries again what is certain"
        assert (await (await producer.send("t", b"after"))).offset == 1
    assert cluster.logs[0].values == [b"before", b"after"]
    assert cluster.identities == 1, "the sequence was not used, and is the next record's"


async def test_it_travels_alone_between_those_before_and_behind_it():
    cluster = ScriptedCluster()
    async with producing(cluster, linger_ms=1_000) as producer:
        sent = [await producer.send("t", b"a"), await producer.send("t", b"b")]
        sent.append(await producer.send("t", b"c", partition=0, if_match=2))
        sent += [await producer.send("t", b"d"), await producer.send("t", b"e")]
        await producer.flush()
        assert [(await delivery).offset for delivery in sent] == [0, 1, 2, 3, 4]
    assert len(cluster.logs[0].attempts) == 3


async def test_of_several_for_one_offset_the_first_is_written():
    cluster = ScriptedCluster()
    async with producing(cluster) as producer:
        sent = [await producer.send("t", b"%d" % n, partition=0, if_match=0) for n in range(3)]
        assert [await outcome(delivery) for delivery in sent] == [
            0, (1, ConditionFailedError), (1, ConditionFailedError),
        ]  # fmt: skip


@pytest.mark.parametrize("script", [["lost answer"], ["lost request"], ["lost answer"] * 3])
async def test_what_was_lost_is_sent_again_and_gets_its_first_answer(script):
    cluster = ScriptedCluster()
    cluster.logs[0].script = list(script)
    async with producing(cluster) as producer:
        assert (await (await producer.send("t", b"v", partition=0, if_match=0))).offset == 0
    assert cluster.logs[0].values == [b"v"]


async def test_a_refusal_after_a_lost_request_is_certain_where_another_has_the_offset():
    cluster = ScriptedCluster()
    cluster.logs[0].append(foreign(b"other"))
    cluster.logs[0].script = ["lost request"]
    async with producing(cluster) as producer:
        delivery = await producer.send("t", b"v", partition=0, if_match=0)
        assert await outcome(delivery) == (1, ConditionFailedError)
        assert (await (await producer.send("t", b"next"))).offset == 1
    assert cluster.identities == 1


async def test_it_is_not_where_the_offset_is_still_to_come():
    # The request that got lost may arrive once the partition has grown that far.
    cluster = ScriptedCluster()
    cluster.logs[0].script = ["lost request"]
    async with producing(cluster) as producer:
        delivery = await producer.send("t", b"v", partition=0, if_match=5)
        with pytest.raises(UnknownResultError):
            await delivery


async def test_without_sequences_a_lost_answer_stays_unknown():
    cluster = ScriptedCluster()
    cluster.logs[0].script = ["lost answer"]
    async with producing(cluster, idempotent=False) as producer:
        with pytest.raises(UnknownResultError):
            await (await producer.send("t", b"v", partition=0, if_match=0))


async def test_what_may_pass_is_tried_again_under_the_same_condition():
    cluster = ScriptedCluster()
    cluster.logs[0].script = [not_now(), not_now()]
    async with producing(cluster, delivery_timeout_ms=3_000) as producer:
        assert (await (await producer.send("t", b"v", partition=0, if_match=0))).offset == 0
        cluster.logs[0].script = [not_now() for _ in range(100)]
        with pytest.raises(DeliveryTimeoutError):
            await (await producer.send("t", b"w", partition=0, if_match=1))


async def test_a_key_names_the_partition_too():
    cluster = ScriptedCluster(partitions=4)
    async with producing(cluster) as producer:
        receipts = [await (await producer.send("t", b"v", key=b"k", if_match=n)) for n in (0, 1)]
    assert len({receipt.partition for receipt in receipts}) == 1


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ({"if_match": 0}, {}, "give partition, or a key"),
        ({"if_match": -1, "partition": 0}, {}, "is not an offset"),
        ({"if_match": 0, "partition": 0}, {"acks": 0, "idempotent": False}, "no response says"),
    ],
)
async def test_what_no_node_would_judge_is_refused_at_send(arguments, options, message):
    cluster = ScriptedCluster()
    async with producing(cluster, **options) as producer:
        with pytest.raises(BadRecordError, match=message):
            await producer.send("t", b"v", **arguments)
    assert not cluster.logs[0].attempts


def foreign(value):
    """A batch of another client."""
    columns = RecordColumns(
        offset_deltas=None, timestamp_deltas=None, keys=None, values=[value], headers=None
    )
    return encode_batch(columns, base_timestamp_ms=NOW_MS)
