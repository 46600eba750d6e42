"""A program's transactions against a scripted cluster: what its end names, and what leaving its block raises."""

from random import Random
from types import SimpleNamespace

import pytest

from milena.cluster.transport import MemberOffsets, WrittenPart
from milena.errors import (
    AnswerError,
    ProducerFencedError,
    RecordTooLargeError,
    StaleMemberError,
    TargetNotFoundError,
    TransactionAbortedError,
    UnknownResultError,
    UnreachableError,
)
from milena.model.types import PRODUCER_EPOCH_MAX
from milena.producing.options import ProducerOptions
from milena.producing.transaction import TransactionalId, TransactionalProducer
from milena.records import ProducerIdentity, TopicPartition
from tests.support.fakes.scripted_cluster import ScriptedClock, not_now, unknown
from tests.support.fakes.transactional_cluster import TransactionalCluster

T0 = TopicPartition("t", 0)


class Reader:
    """A consumer of a group."""

    def __init__(self, **options):
        self.options = SimpleNamespace(**{"group": "g", "auto_commit": False, **options})
        self.member_id, self.member_epoch = "c1", 5
        self.reached = {T0: 9}
        self.rewound = 0

    def given_out(self):
        return self.reached

    def topic_tags(self):
        return {T0: "9f3a12bc44de"}

    async def rewind(self):
        self.rewound += 1


def producer_of(cluster, *, until_visible=True, **options):
    return TransactionalProducer(
        TransactionalId("me", timeout_ms=500, until_visible=until_visible, calls=cluster),
        ProducerOptions(linger_ms=0, **options),
        metadata=cluster,
        clock=ScriptedClock(),
        chance=Random(1),
    )


async def test_the_commit_names_what_was_acknowledged_and_writes_name_the_transaction():
    cluster = TransactionalCluster(partitions=2)
    producer = producer_of(cluster)
    async with producer.transaction() as tx:
        await tx.send("t", b"a", partition=0)
        await tx.flush()
        await tx.send_many("t", [b"b", b"c"], partition=0)
        await tx.send("t", b"d", partition=1)
        tx.add_offsets("other", {("t", 1): 4})
    parts = {
        T0: WrittenPart(end_offset=3, records=3),
        TopicPartition("t", 1): WrittenPart(end_offset=1, records=1),
    }
    offsets = MemberOffsets(
        group="other", member_id=None, member_epoch=None, offsets={TopicPartition("t", 1): 4}
    )
    assert cluster.committed == [(ProducerIdentity(7, 4), parts, [offsets])]
    assert set(cluster.named) == {"7:4:500"}


@pytest.mark.parametrize("until_visible", [True, False])
async def test_a_commit_waits_for_readers_or_for_the_decision_alone(until_visible):
    cluster = TransactionalCluster()
    async with producer_of(cluster, until_visible=until_visible).transaction() as tx:
        await tx.send("t", b"a")
    assert cluster.waits == [until_visible]


async def test_the_next_one_goes_on_under_the_next_epoch_without_a_question():
    cluster = TransactionalCluster()
    producer = producer_of(cluster)
    for _ in range(3):
        async with producer.transaction() as tx:
            await tx.send("t", b"v")
    assert cluster.begun == [("me", 500)]
    assert [identity for identity, *_ in cluster.committed] == [
        ProducerIdentity(7, e) for e in (4, 5, 6)
    ]


async def test_a_write_whose_answer_was_lost_is_recognised_and_counted_once():
    cluster = TransactionalCluster()
    cluster.logs[0].script = ["lost answer", "lost request"]
    async with producer_of(cluster).transaction() as tx:
        await tx.send("t", b"a")
        await tx.flush()
        await tx.send("t", b"b")
    assert cluster.committed[0][1] == {T0: WrittenPart(end_offset=2, records=2)}
    assert cluster.logs[0].values == [b"a", b"b"]


async def test_an_exception_aborts_and_is_what_leaving_raises():
    cluster = TransactionalCluster()
    producer = producer_of(cluster)
    reader = Reader()

    async def fail():
        async with producer.transaction() as tx:
            tx.add_consumer(reader)
            await tx.send("t", b"a")
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert (cluster.committed, cluster.aborted) == ([], [ProducerIdentity(7, 4)])
    assert reader.rewound == 1
    async with producer.transaction():
        pass
    assert cluster.committed == [(ProducerIdentity(7, 5), {}, [])]


async def test_a_record_that_was_not_written_aborts_whoever_waits_for_it_or_not():
    cluster = TransactionalCluster()
    cluster.logs[0].bytes_max = 300
    with pytest.raises(TransactionAbortedError) as raised:
        async with producer_of(cluster).transaction() as tx:
            await tx.send("t", b"x" * 1000)
    assert isinstance(raised.value.__cause__, RecordTooLargeError)
    assert (len(cluster.aborted), cluster.committed) == (1, [])


async def test_a_write_of_unknown_fate_aborts():
    cluster = TransactionalCluster()
    cluster.logs[0].script = ["lost answer"] * 10_000
    with pytest.raises(TransactionAbortedError):
        async with producer_of(cluster, delivery_timeout_ms=200).transaction() as tx:
            await tx.send("t", b"a")
    assert (len(cluster.aborted), cluster.committed) == (1, [])


async def test_a_commit_without_an_answer_is_asked_for_again():
    cluster = TransactionalCluster()
    cluster.ends = [unknown(), not_now(), UnreachableError("gone")]
    async with producer_of(cluster).transaction() as tx:
        await tx.send("t", b"a")
    assert len(cluster.committed) == 1


FENCED = ProducerFencedError("another began", status=409, error_code=40924)
FORGOTTEN = TargetNotFoundError("never begun, or forgotten", status=404, error_code=40412)


@pytest.mark.parametrize("said", [FENCED, FORGOTTEN])
async def test_what_is_said_after_a_commits_answer_was_lost_does_not_tell_what_became_of_it(said):
    """The first may have been heard, and others have gone on since."""
    cluster = TransactionalCluster()
    cluster.ends = [unknown(), said]
    reader = Reader()
    with pytest.raises(UnknownResultError) as caught:  # noqa: PT012
        async with producer_of(cluster).transaction() as tx:
            tx.add_consumer(reader)
            await tx.send("t", b"a")
    assert caught.value.__cause__ is said
    assert reader.rewound == 1
    assert cluster.aborted == []


async def test_aborted_is_certain_whenever_it_is_said():
    cluster = TransactionalCluster()
    aborted = TransactionAbortedError("its time was over", status=409, error_code=40926)
    cluster.ends = [unknown(), aborted]
    producer = producer_of(cluster)
    with pytest.raises(TransactionAbortedError):
        async with producer.transaction() as tx:
            await tx.send("t", b"a")
    # Told so again, the cluster says which epoch is next.
    assert cluster.aborted == [ProducerIdentity(7, 4)]
    async with producer.transaction():
        pass
    assert len(cluster.begun) == 1


async def test_a_commit_of_other_records_than_are_there_ends_the_transaction():
    cluster = TransactionalCluster()
    changed = AnswerError("1 record more", status=409, error_code=40928)
    cluster.ends = [changed]
    with pytest.raises(TransactionAbortedError, match="1 record more"):
        async with producer_of(cluster).transaction() as tx:
            await tx.send("t", b"a")
    assert cluster.aborted == [ProducerIdentity(7, 4)]


async def test_a_beginning_is_asked_for_until_there_is_one():
    cluster = TransactionalCluster()
    cluster.beginnings = [not_now(), unknown(), UnreachableError("nobody listens")]
    async with producer_of(cluster).transaction() as tx:
        await tx.send("t", b"a")
    assert len(cluster.begun) == 4
    assert len(cluster.committed) == 1


async def test_the_last_epoch_carries_no_transaction():
    cluster = TransactionalCluster()
    cluster.first_epoch = PRODUCER_EPOCH_MAX - 1
    producer = producer_of(cluster)
    for _ in range(2):
        async with producer.transaction() as tx:
            await tx.send("t", b"a")
    assert len(cluster.begun) == 2


async def test_one_that_nobody_tells_of_is_unknown():
    cluster = TransactionalCluster()
    cluster.ends = [unknown(), *[UnreachableError("gone")] * 10_000]
    reader = Reader()
    with pytest.raises(UnknownResultError):
        async with producer_of(cluster, delivery_timeout_ms=1_000).transaction() as tx:
            tx.add_consumer(reader)
    assert reader.rewound == 1


async def test_one_that_no_node_has_heard_of_cannot_be_committed_any_more():
    cluster = TransactionalCluster()
    cluster.ends = [UnreachableError("gone")] * 10_000
    reader = Reader()
    with pytest.raises(TransactionAbortedError, match="gone"):
        async with producer_of(cluster, delivery_timeout_ms=1_000).transaction() as tx:
            tx.add_consumer(reader)
    assert reader.rewound == 1


@pytest.mark.parametrize("kind", [TransactionAbortedError, ProducerFencedError, StaleMemberError])
async def test_a_commit_that_is_refused_says_why_and_the_consumer_goes_back(kind):
    cluster = TransactionalCluster()
    cluster.ends = [kind("no", status=409, error_code=None)]
    reader = Reader()

    async def work():
        async with producer_of(cluster).transaction() as tx:
            tx.add_consumer(reader)
            await tx.send("t", b"a")

    with pytest.raises(kind):
        await work()
    assert reader.rewound == 1
    assert cluster.committed == []


async def test_a_consumer_commits_what_it_has_given_out_under_its_epoch():
    cluster = TransactionalCluster()
    async with producer_of(cluster).transaction() as tx:
        tx.add_consumer(Reader())
    assert cluster.committed[0][2] == [
        MemberOffsets(
            group="g",
            member_id="c1",
            member_epoch=5,
            offsets={T0: 9},
            topic_tags={T0: "9f3a12bc44de"},
        )
    ]


@pytest.mark.parametrize("options", [{"group": None}, {"auto_commit": True}])
async def test_a_consumer_that_commits_by_itself_or_not_at_all_is_refused(options):
    with pytest.raises(ValueError, match="auto_commit"):
        producer_of(TransactionalCluster()).transaction().add_consumer(Reader(**options))


async def test_one_is_open_at_a_time():
    producer = producer_of(TransactionalCluster())
    async with producer.transaction():
        with pytest.raises(ValueError, match="is open"):
            await producer.transaction().__aenter__()
    async with producer.transaction():
        pass


@pytest.mark.parametrize("options", [{"acks": 1}, {"idempotent": False}])
def test_weaker_writes_are_refused(options):
    with pytest.raises(ValueError, match="acks='all'"):
        producer_of(TransactionalCluster(), **options)
