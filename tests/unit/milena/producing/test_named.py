"""A producer with a name against a scripted cluster: it goes on where it stopped, and writes no record twice."""

from random import Random

import pytest

from milena.errors import (
    BadRecordError,
    ClientClosedError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortedError,
    UnknownResultError,
    UnreachableError,
)
from milena.model.types import PRODUCER_EPOCH_MAX
from milena.producing.named import NamedProducer
from milena.producing.options import ProducerOptions
from milena.producing.transaction import TransactionalId, TransactionalProducer
from milena.records import ProducerIdentity, TopicPartition
from tests.support.fakes.scripted_cluster import ScriptedClock, not_now, unknown
from tests.support.fakes.transactional_cluster import TransactionalCluster

HOME = TopicPartition("t", 0)


def producer_of(cluster, **options):
    transactions = TransactionalProducer(
        TransactionalId("loader", timeout_ms=500, until_visible=True, calls=cluster),
        ProducerOptions(linger_ms=0, **options),
        metadata=cluster,
        clock=ScriptedClock(),
        chance=Random(1),
    )
    return NamedProducer(transactions, name="loader", topic="t", groups=cluster)


async def test_the_position_is_committed_with_the_records_and_known_to_the_next_life():
    cluster = TransactionalCluster(partitions=2)
    async with producer_of(cluster) as producer:
        assert producer.position == 0
        await producer.write(0, [b"a", b"b"], partition=1)
        await producer.write(2, [b"c"], keys=[b"k"], partition=0)
        assert producer.position == 3
    assert cluster.groups == {"producer-loader": {HOME: 3}}
    async with producer_of(cluster) as heir:
        assert heir.position == 3
    assert cluster.begun == [("loader", 500)] * 2


async def test_what_is_written_is_left_out_wherever_it_is_begun_again():
    cluster = TransactionalCluster()
    async with producer_of(cluster) as producer:
        await producer.write(0, [b"a", b"b", b"c"])
    async with producer_of(cluster) as heir:
        assert len(await heir.write(0, [b"a", b"b"])) == 0
        deliveries = await heir.write(2, [b"c", b"d"], keys=[b"2", b"3"])
        assert [receipt.offset for receipt in await deliveries] == [3]
    assert cluster.logs[0].values == [b"a", b"b", b"c", b"d"]
    assert cluster.logs[0].records[3][2] == b"3"


async def test_a_gap_is_refused_before_anything_is_sent():
    cluster = TransactionalCluster()
    async with producer_of(cluster) as producer:
        with pytest.raises(ValueError, match="0 to 4 of loader were not written"):
            await producer.write(5, [b"f"])
        with pytest.raises(ValueError, match="from 0"):
            await producer.write(-1, [b"f"])
        with pytest.raises(BadRecordError, match="a list of values, not generator"):
            await producer.write(0, (value for value in [b"f"]))
    assert cluster.committed == []


async def test_a_topic_that_was_made_again_has_none_of_its_records():
    cluster = TransactionalCluster()
    async with producer_of(cluster) as producer:
        await producer.write(0, [b"a", b"b"])
        cluster.make_again()
        with pytest.raises(ValueError, match="0 to 1 of loader were not written"):
            await producer.write(2, [b"c"])
        assert producer.position == 0
        assert cluster.groups == {}
        await producer.write(0, [b"a", b"b", b"c"])
    assert cluster.groups["producer-loader"] == {HOME: 3}


async def test_what_was_written_is_written_again_where_its_topic_was_made_again():
    cluster = TransactionalCluster()
    async with producer_of(cluster) as producer:
        await producer.write(0, [b"a", b"b"])
        cluster.make_again()
        assert len(await producer.write(0, [b"a", b"b"])) == 2
        assert producer.position == 2
    assert cluster.groups["producer-loader"] == {HOME: 2}


async def test_one_that_was_aborted_may_be_written_again():
    cluster = TransactionalCluster()
    async with producer_of(cluster) as producer:
        cluster.ends = [TransactionAbortedError("over", status=409, error_code=40926)]
        with pytest.raises(TransactionAbortedError):
            await producer.write(0, [b"a"])
        assert producer.position == 0
        await producer.write(0, [b"a"])
    assert cluster.groups["producer-loader"] == {HOME: 1}
    assert len(cluster.begun) == 1


async def test_a_record_that_cannot_be_written_lets_nothing_count_and_the_name_go_on():
    cluster = TransactionalCluster()
    async with producer_of(cluster, buffer_bytes=256 << 10) as producer:
        with pytest.raises(RecordTooLargeError):
            await producer.write(0, [b"x" * (300 << 10)])
        await producer.write(0, [b"a"])
    assert cluster.groups["producer-loader"] == {HOME: 1}


@pytest.mark.parametrize("was_committed", [True, False])
async def test_a_write_of_unknown_fate_is_found_out_when_it_is_repeated(was_committed):
    cluster = TransactionalCluster()
    async with producer_of(cluster, delivery_timeout_ms=300) as producer:
        await producer.write(0, [b"a"])
        cluster.ends = [unknown()] * 20
        with pytest.raises(UnknownResultError):
            await producer.write(1, [b"b"])
        cluster.ends = []
        if was_committed:
            cluster.groups["producer-loader"][HOME] = 2
        deliveries = await producer.write(1, [b"b"])
        assert len(deliveries) == (0 if was_committed else 1)
        assert producer.position == 2
    assert len(cluster.begun) == 2


async def test_who_is_fenced_writes_nothing_more_and_does_not_take_the_name_back():
    cluster = TransactionalCluster()
    async with producer_of(cluster) as producer:
        cluster.ends = [ProducerFencedError("taken over", status=409, error_code=40924)] * 2
        for _ in range(2):
            with pytest.raises(ProducerFencedError, match="took the name loader over: taken over"):
                await producer.write(0, [b"a"])
        assert len(cluster.begun) == 1


async def test_who_comes_back_after_another_wrote_under_the_name_is_fenced():
    cluster = TransactionalCluster()
    async with producer_of(cluster, delivery_timeout_ms=300) as producer:
        cluster.ends = [not_now()] * 50
        with pytest.raises(TransactionAbortedError):
            await producer.write(0, [b"a"])
        cluster.ends = []
        cluster.groups["producer-loader"] = {HOME: 8}
        for _ in range(2):
            with pytest.raises(ProducerFencedError, match="8 records of loader"):
                await producer.write(0, [b"a"])
    assert cluster.committed == []


async def test_it_goes_on_when_the_epochs_of_its_id_are_used_up():
    cluster = TransactionalCluster()
    cluster.first_epoch = PRODUCER_EPOCH_MAX - 1
    async with producer_of(cluster) as producer:
        for number, value in enumerate([b"a", b"b", b"c"]):
            await producer.write(number, [value])
    assert [identity for identity, *_ in cluster.committed] == [
        ProducerIdentity(7, PRODUCER_EPOCH_MAX - 1),
        ProducerIdentity(8, 0),
        ProducerIdentity(8, 1),
    ]
    assert cluster.groups["producer-loader"] == {HOME: 3}


async def test_opening_waits_for_a_cluster_and_gives_up_in_time():
    cluster = TransactionalCluster()
    cluster.beginnings = [not_now(), UnreachableError("nobody"), None]
    async with producer_of(cluster):
        assert len(cluster.begun) == 3
    cluster.beginnings = [not_now()] * 50
    with pytest.raises(type(not_now())):
        await producer_of(cluster, delivery_timeout_ms=300).__aenter__()


async def test_it_is_a_context_manager_before_it_writes():
    with pytest.raises(ClientClosedError, match="async with"):
        await producer_of(TransactionalCluster()).write(0, [b"a"])


@pytest.mark.parametrize("name", ["", "a" * 247, "a\nb"])
def test_a_name_that_no_group_can_have_is_refused_at_once(name):
    with pytest.raises(ValueError, match="1 to 246 printable characters"):
        NamedProducer(None, name=name, topic="t", groups=None)
