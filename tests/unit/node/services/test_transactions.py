"""Rules of transactions on any node: all of one takes effect or none, whoever dies, and readers see it so."""

import asyncio
from dataclasses import replace

import pytest

from milena.model.batch.decode import iterate_headers
from milena.model.batch.header import ProducerStamp
from milena.model.errors import (
    FateUnknownError,
    InvalidProducerError,
    MilenaError,
    NoLeaderError,
    NotEnoughReplicasError,
    NotLeaderError,
    PartitionCountChangedError,
    PartitionNotFoundError,
    RequestTooLargeError,
    StaleMemberEpochError,
    StaleProducerEpochError,
    TopicNotTransactionalError,
    TransactionAbortedError,
    TransactionChangedError,
    TransactionCommittedError,
    TransactionNotFoundError,
)
from milena.model.requests import (
    Acks,
    BatchReceipt,
    CommittedNext,
    FetchRequest,
    GroupOffsets,
    IdempotencyKey,
    ProduceRequest,
    ProducerTransaction,
    Records,
    TransactionCommit,
    TransactionReceipt,
    TransactionRequest,
    TransactionWrite,
    WrittenExtent,
)
from node.services.log_ends import LogEnds
from raft_meta.machine import producers
from raft_meta.machine.commands import ForgetProducers, TransactionEnd
from raft_meta.machine.transactions import LEADER_EPOCHS_LEVEL
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.runners import batch, values_of
from tests.support.time.virtual_time import after, virtual
from tests.unit.node.services.test_produce import move_leader

KEY = IdempotencyKey(key_hash=b"k" * 16, body_hash=b"b" * 8)


def records(*values: str) -> Records:
    return Records(keys=None, values=[value.encode() for value in values])


def to(topic: str, partition: int | None, *values: str) -> TransactionWrite:
    return TransactionWrite(topic=topic, partition=partition, records=records(*values))


def next_of(group: str, topic: str, offset: int) -> GroupOffsets:
    return GroupOffsets(
        group=group,
        member_id=None,
        member_epoch=-1,
        offsets=(CommittedNext(topic=topic, partition=0, next_offset=offset),),
    )


async def transact(
    cluster: Cluster,
    node_id: int,
    *writes: TransactionWrite,
    offsets: tuple[GroupOffsets, ...] = (),
    key: IdempotencyKey | None = None,
    timeout_ms: int = 2_000,
) -> TransactionReceipt:
    return await cluster.nodes[node_id].transactions.transact(
        TransactionRequest(writes=writes, offsets=offsets, timeout_ms=timeout_ms, idempotency=key)
    )


async def read(
    cluster: Cluster,
    node_id: int,
    topic: str,
    partition: int = 0,
    *,
    is_uncommitted: bool = False,
) -> list[str]:
    """All values that a reader gets, one answer after the other; a replica may hear a moment later than its leader."""
    found: list[str] = []
    offset = 0
    while True:
        result = await cluster.nodes[node_id].reads.fetch(
            FetchRequest(
                topic=topic,
                partition=partition,
                offset=offset,
                timestamp_ms=None,
                max_bytes=1 << 20,
                timeout_ms=600,
                is_local=False,
                is_uncommitted=is_uncommitted,
            )
        )
        headers = [header for _, header in iterate_headers(result.batches)]
        if not headers or headers[-1].next_offset <= offset:
            return found
        found += values_of(result.batches)
        offset = headers[-1].next_offset


async def send(
    cluster: Cluster, node_id: int, transaction: ProducerTransaction, topic: str, *values: str
) -> int:
    """Write within a session; returns the end of what was written."""
    receipts = await cluster.nodes[node_id].produce.produce(
        ProduceRequest(
            topic=topic,
            records=records(*values),
            acks=Acks.ALL,
            timeout_ms=2_000,
            partition=0,
            transaction=transaction,
        )
    )
    for receipt in receipts:
        if receipt.error is not None:
            raise receipt.error
    offset = receipts[-1].offset
    assert offset is not None
    return offset + 1


def commit_of(
    transaction: ProducerTransaction, *writes: tuple[str, int, int], **options: object
) -> TransactionCommit:
    extents = tuple(
        WrittenExtent(topic=topic, partition=0, end_offset=end, records=count)
        for topic, end, count in writes
    )
    return TransactionCommit(
        transaction=transaction,
        writes=extents,
        offsets=options.get("offsets", ()),  # type: ignore[arg-type]
        timeout_ms=2_000,
    )


def committed_of(cluster: Cluster, group: str, topic: str) -> int | None:
    found = cluster.image.topic(topic)
    assert found is not None
    committed = cluster.image.offsets.get(group, {}).get((found.topic_id, 0))
    return None if committed is None else committed.offset


async def two_topics(cluster: Cluster) -> None:
    await cluster.until(lambda: cluster.image.feature_level >= 6)
    await cluster.create("t", (1, 2, 3))
    await cluster.create("u", (2, 3, 1))


class TestOneRequest:
    @virtual
    @pytest.mark.parametrize("node_id", [1, 2, 3])
    async def test_it_writes_to_several_topics_and_moves_offsets_at_once(
        self, node_id: int
    ) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            receipt = await transact(
                cluster,
                node_id,
                to("t", 0, "a", "b"),
                to("u", 0, "c"),
                to("t", 0, "d"),
                offsets=(next_of("g", "t", 3),),
            )
            assert receipt.is_visible
            assert not receipt.is_duplicate
            assert [[r.offset for r in write] for write in receipt.receipts] == [[0, 1], [0], [2]]
            for reader in (1, 2, 3):
                assert await read(cluster, reader, "t") == ["a", "b", "d"]
                assert await read(cluster, reader, "u") == ["c"]
            assert committed_of(cluster, "g", "t") == 3

    @virtual
    async def test_a_records_own_partition_wins_over_its_writes(self) -> None:
        async with cluster_of() as cluster:
            await cluster.until(lambda: cluster.image.feature_level >= 6)
            await cluster.create("t", (1, 2, 3), (2, 3, 1))
            named = Records(keys=None, values=[b"a", b"b"], partitions=[1, None])
            receipt = await transact(
                cluster, 3, TransactionWrite(topic="t", partition=0, records=named)
            )
            assert [r.partition for r in receipt.receipts[0]] == [1, 0]
            assert await read(cluster, 1, "t", 1) == ["a"]
            assert await read(cluster, 1, "t", 0) == ["b"]

    @virtual
    async def test_what_cannot_be_written_whole_is_not_written_at_all(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            await cluster.create("late", (1, 2, 3), flush_messages="100")
            await cluster.create("small", (1, 2, 3), max_message_bytes="1024")
            refused: list[tuple[type[MilenaError], tuple[TransactionWrite, ...]]] = [
                (PartitionNotFoundError, (to("t", 0, "x"), to("u", 7, "x"))),
                (TopicNotTransactionalError, (to("t", 0, "x"), to("late", 0, "x"))),
                (RequestTooLargeError, (to("t", 0, "x"), to("small", 0, *["x" * 100] * 20))),
            ]
            for kind, writes in refused:
                with pytest.raises(kind):
                    await transact(cluster, 1, *writes)
            assert await read(cluster, 1, "t", is_uncommitted=True) == []

    @virtual
    async def test_offsets_that_a_member_may_not_commit_abort_it(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            stale = GroupOffsets(
                group="g",
                member_id="gone",
                member_epoch=1,
                offsets=(CommittedNext(topic="t", partition=0, next_offset=1),),
            )
            with pytest.raises(MilenaError) as refused:
                await transact(cluster, 1, to("t", 0, "x"), offsets=(stale,))
            assert refused.value.code in ("member_not_found", StaleMemberEpochError.code)
            await transact(cluster, 1, to("t", 0, "y"))
            assert await read(cluster, 2, "t") == ["y"]

    @virtual
    async def test_a_write_of_unknown_fate_is_a_certain_no(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            # Nothing is committed in u: its leader is cut off from its followers, and from the quorum.
            cluster.isolate(2)
            work = asyncio.ensure_future(
                transact(cluster, 1, to("t", 0, "x"), to("u", 0, "y"), timeout_ms=1_000)
            )
            with pytest.raises((NoLeaderError, MilenaError)):
                await work
            cluster.heal()
            await after(3_000)
            assert await read(cluster, 1, "t") == []
            assert await read(cluster, 1, "u") == []
            await transact(cluster, 3, to("t", 0, "z"), to("u", 0, "z"))
            assert await read(cluster, 1, "t") == ["z"]

    @virtual
    async def test_a_node_that_dies_over_it_leaves_nothing_that_holds_readers_up(self) -> None:
        async with cluster_of(Cluster(network_ms=lambda rng: 10.0)) as cluster:
            await two_topics(cluster)
            work = asyncio.ensure_future(transact(cluster, 3, to("t", 0, "x"), to("u", 0, "y")))
            await cluster.until(lambda: bool(cluster.runner(1, "t").log.transactions.open))
            await cluster.kill(3)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await cluster.until(
                lambda: not any(cluster.runner(n, "t").log.transactions.open for n in (1, 2)),
                timeout_ms=10_000,
            )
            await transact(cluster, 1, to("t", 0, "z"))
            seen = (await read(cluster, 2, "t"), await read(cluster, 2, "u"))
            assert seen in ((["z"], []), (["x", "z"], ["y"]))

    @virtual
    @pytest.mark.parametrize("key", [None, KEY])
    async def test_one_that_others_end_before_it_is_committed_is_done_as_another(
        self, key: IdempotencyKey | None
    ) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            ends = cluster.nodes[1].transaction_ends
            end = ends.end

            async def abort_first(ended: TransactionEnd) -> None:
                ends.end = end  # type: ignore[method-assign]
                await end(replace(ended, is_commit=False, is_keyed=False, extents=(), offsets=()))
                await end(ended)

            ends.end = abort_first  # type: ignore[method-assign]
            receipt = await transact(cluster, 1, to("t", 0, "x"), to("u", 0, "y"), key=key)
            assert not receipt.is_duplicate
            assert await read(cluster, 2, "t") == ["x"]
            assert await read(cluster, 3, "u") == ["y"]

    @virtual
    async def test_nor_is_it_over_for_its_client_where_it_is_never_let_be(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            ends = cluster.nodes[1].transaction_ends
            end = ends.end

            async def abort_first(ended: TransactionEnd) -> None:
                await end(replace(ended, is_commit=False, is_keyed=False, extents=(), offsets=()))
                await end(ended)

            ends.end = abort_first  # type: ignore[method-assign]
            with pytest.raises(NoLeaderError, match="nothing was written, try again"):
                await transact(cluster, 1, to("t", 0, "x"), to("u", 0, "y"), timeout_ms=500)
            ends.end = end  # type: ignore[method-assign]
            assert await read(cluster, 2, "t") == []


class TestShared:
    @virtual
    async def test_requests_at_once_share_one_and_each_has_its_own_answer(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            before = cluster.image.index
            receipts = await asyncio.gather(
                *(
                    transact(cluster, 3, to("t", 0, f"a{n}", f"b{n}"), to("u", 0, f"c{n}"))
                    for n in range(8)
                )
            )
            assert all(receipt.is_visible for receipt in receipts)
            offsets = [
                [r.offset for write in receipt.receipts for r in write] for receipt in receipts
            ]
            assert offsets == [[2 * n, 2 * n + 1, n] for n in range(8)]
            # One producer, one end, the end of its markers in two partitions.
            assert cluster.image.index - before <= 4
            assert cluster.nodes[3].counts.transactions.committed == 8
            for reader in (1, 2, 3):
                assert await read(cluster, reader, "u") == [f"c{n}" for n in range(8)]

    @virtual
    async def test_nobody_is_refused_for_a_neighbour(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            await cluster.create("single", (1,))
            await cluster.create("alone", (1,))

            def refuse(*args: object, **options: object) -> None:
                raise NotEnoughReplicasError("told by the test")

            cluster.runner(1, "alone").append = refuse  # type: ignore[method-assign,assignment]
            good, bad = await asyncio.gather(
                transact(cluster, 2, to("single", 0, "good")),
                transact(cluster, 2, to("alone", 0, "bad")),
                return_exceptions=True,
            )
            assert isinstance(good, TransactionReceipt)
            assert isinstance(bad, NotEnoughReplicasError)
            assert await read(cluster, 3, "single") == ["good"]
            assert await read(cluster, 3, "single", is_uncommitted=True) == ["good", "good"]


class TestKeys:
    @virtual
    async def test_a_repeat_on_any_node_gets_the_first_answer(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            writes = (to("t", 0, "a", "b"), to("u", 0, "c"))
            first = await transact(cluster, 1, *writes, key=KEY)
            for node_id in (1, 2, 3):
                again = await transact(cluster, node_id, *writes, key=KEY)
                assert again.is_duplicate
                assert [[r.offset for r in w] for w in again.receipts] == [
                    [r.offset for r in w] for w in first.receipts
                ]
            assert await read(cluster, 2, "t") == ["a", "b"]
            assert await read(cluster, 2, "u") == ["c"]

    @virtual
    async def test_a_repeat_leaves_nothing_in_other_partitions(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            writes = (to("t", 0, "a"), to("u", 0, "b"))
            await transact(cluster, 1, *writes, key=KEY)
            end = cluster.runner(2, "u").log.log_end_offset
            for node_id in (1, 2, 3):
                assert (await transact(cluster, node_id, *writes, key=KEY)).is_duplicate
            assert cluster.runner(2, "u").log.log_end_offset == end

    @virtual
    async def test_a_key_costs_no_round_trip(self) -> None:
        async with cluster_of(Cluster(network_ms=lambda rng: 10.0)) as cluster:
            await two_topics(cluster)
            took_s: list[float] = []
            for key in (None, None, KEY):
                began_s = asyncio.get_running_loop().time()
                await transact(cluster, 3, to("t", 0, "a"), to("u", 0, "b"), key=key)
                took_s.append(asyncio.get_running_loop().time() - began_s)
            # The first one had the node's first producer to allocate.
            assert took_s[2] == pytest.approx(took_s[1])

    @virtual
    async def test_one_after_the_topic_has_grown_is_refused_wherever_its_records_would_go(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            keys = [IdempotencyKey(key_hash=bytes([n]) * 16, body_hash=b"b" * 8) for n in range(8)]
            for key in keys:
                await transact(cluster, 1, to("t", None, "x"), to("u", 0, "y"), key=key)
            await cluster.nodes[2].admin.add_partitions("t", 3)
            await cluster.until(lambda: cluster.is_led("t"))
            for key in keys:
                with pytest.raises(PartitionCountChangedError, match="had 1 partitions, it has 3"):
                    await transact(cluster, 3, to("t", None, "x"), to("u", 0, "y"), key=key)
            assert await read(cluster, 1, "u") == ["y"] * 8
            new = IdempotencyKey(key_hash=b"n" * 16, body_hash=b"b" * 8)
            for node_id in (1, 2):
                await transact(cluster, node_id, to("t", None, "x"), to("u", 0, "z"), key=new)
            assert await read(cluster, 1, "u") == [*["y"] * 8, "z"]

    @virtual
    async def test_so_does_one_after_the_homes_leader_has_moved_and_died(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            writes = (to("t", 0, "a", "b"), to("u", 0, "c"))
            await transact(cluster, 1, *writes, key=KEY)
            await move_leader(cluster, 2)
            assert (await transact(cluster, 3, *writes, key=KEY)).is_duplicate
            await cluster.kill(2)
            await cluster.until(lambda: cluster.is_led("t") and cluster.is_led("u"))
            assert (await transact(cluster, 1, *writes, key=KEY)).is_duplicate
            assert await read(cluster, 1, "t") == ["a", "b"]

    @virtual
    async def test_of_many_at_once_one_is_written(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            writes = (to("t", 0, "a"), to("u", 0, "b"))
            answers = await asyncio.gather(
                *(
                    transact(cluster, 1 + i % 3, *writes, key=KEY, timeout_ms=5_000)
                    for i in range(6)
                ),
                return_exceptions=True,
            )
            assert any(isinstance(answer, TransactionReceipt) for answer in answers)
            assert await read(cluster, 1, "t") == ["a"]
            assert await read(cluster, 2, "u") == ["b"]

    @virtual
    async def test_the_key_of_an_aborted_one_is_free(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            stale = GroupOffsets(
                group="g",
                member_id="gone",
                member_epoch=1,
                offsets=(CommittedNext(topic="t", partition=0, next_offset=1),),
            )
            with pytest.raises(MilenaError):
                await transact(cluster, 1, to("t", 0, "a"), offsets=(stale,), key=KEY)
            receipt = await transact(cluster, 2, to("t", 0, "a"), key=KEY)
            assert not receipt.is_duplicate
            assert await read(cluster, 3, "t") == ["a"]


class TestSessions:
    @virtual
    async def test_what_is_committed_appears_and_what_is_aborted_never_does(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            service = cluster.nodes[1].transactions
            one = await service.begin("me", timeout_ms=30_000)
            end = await send(cluster, 2, one, "t", "a", "b")
            assert await read(cluster, 3, "t") == []
            assert await read(cluster, 3, "t", is_uncommitted=True) == ["a", "b"]
            ended = await service.commit(commit_of(one, ("t", end, 2)))
            assert ended.is_visible
            assert await read(cluster, 3, "t") == ["a", "b"]
            two = ProducerTransaction(producer_id=one.producer_id, producer_epoch=ended.next_epoch)
            await send(cluster, 3, two, "t", "c")
            await cluster.nodes[2].transactions.abort(two, timeout_ms=1_000)
            await cluster.nodes[1].write("t", "d")
            for node_id in (1, 2, 3):
                assert await read(cluster, node_id, "t") == ["a", "b", "d"]

    @virtual
    async def test_an_open_one_holds_up_what_comes_behind_it_and_nothing_before(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            await cluster.nodes[1].write("t", "before")
            one = await cluster.nodes[1].transactions.begin("me", timeout_ms=30_000)
            await send(cluster, 1, one, "t", "open")
            await cluster.nodes[1].write("t", "behind")
            for node_id in (1, 2, 3):
                assert await read(cluster, node_id, "t") == ["before"]
                assert (await cluster.nodes[node_id].reads.offsets("t", 0)).high_watermark == 1
            await cluster.nodes[1].transactions.abort(one, timeout_ms=1_000)
            await cluster.until(lambda: cluster.runner(1, "t").stable_end == 4)
            assert await read(cluster, 1, "t") == ["before", "behind"]

    @virtual
    async def test_its_end_said_again_is_the_same_and_the_other_one_is_refused(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            service = cluster.nodes[1].transactions
            one = await service.begin("me", timeout_ms=30_000)
            commit = commit_of(one, ("t", await send(cluster, 1, one, "t", "a"), 1))
            first = await service.commit(commit)
            assert (
                await cluster.nodes[2].transactions.commit(commit)
            ).next_epoch == first.next_epoch
            with pytest.raises(TransactionCommittedError):
                await service.abort(one, timeout_ms=1_000)
            two = ProducerTransaction(producer_id=one.producer_id, producer_epoch=first.next_epoch)
            await service.abort(two, timeout_ms=1_000)
            await service.abort(two, timeout_ms=1_000)
            with pytest.raises(TransactionAbortedError):
                await service.commit(commit_of(two))

    @virtual
    async def test_a_commit_that_does_not_know_of_a_write_is_refused(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            service = cluster.nodes[1].transactions
            one = await service.begin("me", timeout_ms=30_000)
            await send(cluster, 1, one, "t", "unheard")
            end = await send(cluster, 1, one, "t", "a")
            for wrong in (("t", end, 1), ("t", end - 1, 1), ("u", 1, 1)):
                with pytest.raises(TransactionChangedError):
                    await service.commit(commit_of(one, wrong))
            await service.commit(commit_of(one, ("t", end, 2)))
            assert await read(cluster, 2, "t") == ["unheard", "a"]

    @virtual
    async def test_nor_is_it_taken_by_a_node_that_has_not_heard_of_it(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            cluster.isolate(3)
            one = await cluster.nodes[1].transactions.begin("me", timeout_ms=30_000)
            await send(cluster, 1, one, "t", "a")
            end = await send(cluster, 1, one, "t", "answer lost")
            cluster.heal()
            service = cluster.nodes[3].transactions
            assert one.producer_id not in cluster.nodes[3].metadata.image.producers
            with pytest.raises(TransactionChangedError):
                await service.commit(commit_of(one, ("t", end, 1)))
            assert (await service.commit(commit_of(one, ("t", end, 2)))).is_visible

    @virtual
    async def test_a_leader_that_goes_while_it_is_committed_leaves_the_word_to_the_next(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            node = cluster.nodes[3]
            one = await node.transactions.begin("me", timeout_ms=30_000)
            end = await send(cluster, 3, one, "t", "a")
            ask, asked = node.transaction_ends.end, []

            async def moved_first(told: TransactionEnd) -> None:
                asked.append(told.leader_epochs)
                if len(asked) == 1:
                    await move_leader(cluster, 2)
                await ask(told)

            monkeypatch.setattr(node.transaction_ends, "end", moved_first)
            ended = await node.transactions.commit(commit_of(one, ("t", end, 1)))
            assert ended.is_visible
            assert [len(epochs) for epochs in asked] == [1, 1]
            assert asked[1][0] == asked[0][0] + 1
            assert await read(cluster, 1, "t") == ["a"]

    @virtual
    async def test_leaders_are_confirmed_by_the_commit_itself(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            await cluster.until(lambda: cluster.image.feature_level >= LEADER_EPOCHS_LEVEL)
            one = await cluster.nodes[1].transactions.begin("me", timeout_ms=30_000)
            end = await send(cluster, 1, one, "t", "a")

            async def never(*_: object) -> None:
                raise AssertionError("the quorum is asked twice")

            monkeypatch.setattr(LogEnds, "confirm", never)
            ended = await cluster.nodes[2].transactions.commit(commit_of(one, ("t", end, 1)))
            assert ended.is_visible

    @virtual
    async def test_a_commit_may_be_answered_once_it_is_decided(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            service = cluster.nodes[2].transactions
            one = await service.begin("me", timeout_ms=30_000)
            end = await send(cluster, 1, one, "t", "a")
            commit = replace(commit_of(one, ("t", end, 1)), until_visible=False)
            ended = await service.commit(commit)
            assert not ended.is_visible
            assert (await service.commit(replace(commit, until_visible=True))).is_visible
            assert await read(cluster, 3, "t") == ["a"]

    @virtual
    async def test_a_partition_that_the_commit_leaves_out_is_aborted_there(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            service = cluster.nodes[1].transactions
            one = await service.begin("me", timeout_ms=30_000)
            end = await send(cluster, 1, one, "t", "a")
            await send(cluster, 1, one, "u", "forgotten")
            await service.commit(commit_of(one, ("t", end, 1)))
            await cluster.nodes[1].write("u", "b")
            assert await read(cluster, 2, "t") == ["a"]
            await cluster.until(lambda: cluster.runner(2, "u").stable_end == 3)
            assert await read(cluster, 2, "u") == ["b"]

    @virtual
    async def test_who_begins_under_its_name_aborts_it_and_the_former_holder_is_fenced(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            one = await cluster.nodes[1].transactions.begin("me", timeout_ms=30_000)
            end = await send(cluster, 1, one, "t", "zombie")
            two = await cluster.nodes[2].transactions.begin("me", timeout_ms=30_000)
            assert two.producer_id == one.producer_id
            with pytest.raises((StaleProducerEpochError, TransactionAbortedError)):
                await cluster.nodes[3].transactions.commit(commit_of(one, ("t", end, 1)))
            # It would be told the epoch of the other one's, as that of its next.
            with pytest.raises(StaleProducerEpochError):
                await cluster.nodes[3].transactions.abort(one, timeout_ms=1_000)
            for node_id in (1, 2, 3):
                with pytest.raises(StaleProducerEpochError):
                    await send(cluster, node_id, one, "t", "late")
            end = await send(cluster, 1, two, "t", "heir")
            await cluster.nodes[1].transactions.commit(commit_of(two, ("t", end, 1)))
            assert await read(cluster, 1, "t") == ["heir"]

    @virtual
    async def test_what_a_forgotten_id_left_open_is_aborted_and_its_name_begins_anew(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            await cluster.until(lambda: cluster.image.feature_level >= producers.LEVEL)
            former = await cluster.nodes[1].transactions.begin("app", timeout_ms=600_000)
            end = await send(cluster, 1, former, "t", "lost")
            forget = ForgetProducers(
                producer_ids=(former.producer_id,), unused_since_ms=cluster.image.now_ms
            )
            assert await cluster.any.metadata.propose(forget, timeout_ms=2_000) == 1
            await cluster.until(lambda: not cluster.runner(1, "t").log.transactions.open)
            for node_id in (1, 2, 3):
                with pytest.raises(TransactionNotFoundError):
                    await cluster.nodes[node_id].transactions.commit(
                        commit_of(former, ("t", end, 1))
                    )
            later = await cluster.nodes[2].transactions.begin("app", timeout_ms=600_000)
            assert later.producer_id > former.producer_id
            end = await send(cluster, 2, later, "t", "kept")
            await cluster.nodes[3].transactions.commit(commit_of(later, ("t", end, 1)))
            assert await read(cluster, 3, "t") == ["kept"]

    @virtual
    async def test_a_commit_whose_answer_is_lost_is_never_called_over(self) -> None:
        """It is, and another one was begun; but it may have been committed, as this one is."""
        async with cluster_of() as cluster:
            await two_topics(cluster)
            service = cluster.nodes[1].transactions
            one = await service.begin("me", timeout_ms=30_000)
            commit = commit_of(one, ("t", await send(cluster, 1, one, "t", "a"), 1))
            end = cluster.nodes[1].transaction_ends.end

            async def end_and_lose(ended: TransactionEnd) -> None:
                cluster.nodes[1].transaction_ends.end = end  # type: ignore[method-assign]
                await end(ended)
                await cluster.nodes[2].transactions.begin("me", timeout_ms=30_000)
                raise FateUnknownError("the answer got lost")

            cluster.nodes[1].transaction_ends.end = end_and_lose  # type: ignore[method-assign]
            with pytest.raises(FateUnknownError):
                await service.commit(commit)
            assert await read(cluster, 3, "t") == ["a"]
            # Who asks anew hears no more than that it is over.
            with pytest.raises(StaleProducerEpochError):
                await service.commit(commit)

    @virtual
    @pytest.mark.parametrize("node_id", [1, 2, 3])
    async def test_one_that_is_over_takes_nothing_in_a_partition_that_knows_nothing_of_it(
        self, node_id: int
    ) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            service = cluster.nodes[1].transactions
            one = await service.begin("me", timeout_ms=30_000)
            end = await send(cluster, 1, one, "t", "a")
            await service.commit(commit_of(one, ("t", end, 1)))
            with pytest.raises(StaleProducerEpochError, match="is over; nothing was written"):
                await send(cluster, node_id, one, "u", "late")
            assert cluster.runner(2, "u").log.log_end_offset == 0

    @virtual
    async def test_a_write_that_no_log_recognises_is_not_sent_again(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            one = await cluster.nodes[3].transactions.begin("me", timeout_ms=30_000)
            # Written, and not committed before another one leads.
            cluster.network.cut(1, 2)
            cluster.network.cut(1, 3)
            write = asyncio.ensure_future(send(cluster, 1, one, "t", "x"))
            await after(200)
            cluster.heal()
            await move_leader(cluster, 2)
            end = await write
            assert await read(cluster, 3, "t", is_uncommitted=True) == ["x"]
            await cluster.nodes[1].transactions.commit(commit_of(one, ("t", end, 1)))

    @virtual
    async def test_one_that_was_never_begun_takes_nothing(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            for never in (
                ProducerTransaction(producer_id=999, producer_epoch=0),
                ProducerTransaction(producer_id=1, producer_epoch=500),
            ):
                with pytest.raises(TransactionNotFoundError):
                    await send(cluster, 2, never, "t", "x")
            with pytest.raises(TransactionNotFoundError):
                await cluster.nodes[1].transactions.abort(
                    ProducerTransaction(producer_id=999, producer_epoch=0), timeout_ms=1_000
                )

    @virtual
    async def test_one_whose_time_is_over_is_aborted(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            service = cluster.nodes[1].transactions
            one = await service.begin("me", timeout_ms=2_000)
            end = await send(cluster, 1, one, "t", "slow")
            assert [
                (o.topic, o.records, o.state)
                for o in await service.open_transactions(older_than_ms=0)
            ] == [("t", 1, "open")]
            await after(4_000)
            assert list(await service.open_transactions(older_than_ms=0)) == []
            with pytest.raises(TransactionAbortedError):
                await service.commit(commit_of(one, ("t", end, 1)))
            await cluster.nodes[1].write("t", "on")
            assert await read(cluster, 3, "t") == ["on"]

    @virtual
    async def test_those_that_began_in_the_same_millisecond_are_told_too(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            sessions = [
                await cluster.nodes[1].transactions.begin(name, timeout_ms=30_000) for name in "ab"
            ]
            await asyncio.gather(*(send(cluster, 1, one, "t", "x") for one in sessions))
            told = await cluster.nodes[2].transactions.open_transactions(older_than_ms=0)
            assert len({row.began_ms for row in told}) == 1
            assert [row.producer_name for row in told] == ["a", "b"]

    @virtual
    async def test_numbered_batches_are_recognised_and_must_be_of_its_producer(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            one = await cluster.nodes[1].transactions.begin("me", timeout_ms=30_000)
            mine = ProducerStamp(one.producer_id, one.producer_epoch, 0)
            options = {"acks": Acks.ALL, "timeout_ms": 1_000, "transaction": one}
            produce = cluster.nodes[2].produce.produce_batch
            first = await produce("t", 0, batch("a", producer=mine), **options)  # type: ignore[arg-type]
            again = await produce("t", 0, batch("a", producer=mine), **options)  # type: ignore[arg-type]
            assert (again.base_offset, again.is_duplicate) == (first.base_offset, True)
            other = ProducerStamp(one.producer_id + 1, 0, 0)
            for wrong in (batch("x"), batch("x", producer=other)):
                with pytest.raises(InvalidProducerError):
                    await produce("t", 0, wrong, **options)  # type: ignore[arg-type]
            await cluster.nodes[1].transactions.commit(commit_of(one, ("t", 1, 1)))
            assert await read(cluster, 3, "t") == ["a"]

    @virtual
    async def test_batches_under_a_key_are_recognised_and_are_the_transactions(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            one = await cluster.nodes[1].transactions.begin("me", timeout_ms=30_000)

            async def write(node_id: int) -> BatchReceipt:
                return await cluster.nodes[node_id].produce.produce_batch(
                    "t",
                    0,
                    batch("a", "b"),
                    acks=Acks.ALL,
                    timeout_ms=1_000,
                    transaction=one,
                    idempotency=KEY,
                )

            first, again = await write(2), await write(3)
            assert (again.base_offset, again.is_duplicate) == (first.base_offset, True)
            assert await read(cluster, 3, "t") == []
            await cluster.nodes[1].transactions.abort(one, timeout_ms=2_000)
            # What is aborted is forgotten: the records of the next transaction are its own.
            one = await cluster.nodes[1].transactions.begin("me", timeout_ms=30_000)
            later = await write(1)
            assert not later.is_duplicate
            end = (later.last_offset or 0) + 1
            await cluster.nodes[2].transactions.commit(commit_of(one, ("t", end, 2)))
            assert await read(cluster, 3, "t") == ["a", "b"]
            with pytest.raises(StaleProducerEpochError):
                await write(1)


class TestLeaders:
    @virtual
    @pytest.mark.parametrize("has_committed", [True, False])
    async def test_a_new_leader_writes_the_marker_that_its_predecessor_did_not(
        self, has_committed: bool
    ) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            service = cluster.nodes[3].transactions
            one = await service.begin("me", timeout_ms=30_000)
            end = await send(cluster, 3, one, "t", "a")
            # The leader cannot write it: the quorum decides without it, and another one leads then.
            cluster.isolate(1)
            await cluster.until(lambda: cluster.leader_of("t") not in (1, None), timeout_ms=30_000)
            await cluster.until(lambda: cluster.is_led("t"))
            if has_committed:
                await service.commit(commit_of(one, ("t", end, 1)))
            else:
                await service.abort(one, timeout_ms=2_000)
            cluster.heal()
            await cluster.nodes[3].write("t", "b")
            wanted = ["a", "b"] if has_committed else ["b"]
            await cluster.until(lambda: cluster.runner(2, "t").stable_end == 3)
            await cluster.until(lambda: not cluster.image.ending)
            assert await read(cluster, 2, "t") == wanted
            await cluster.until(lambda: cluster.runner(1, "t").stable_end == 3)
            assert await read(cluster, 1, "t") == wanted

    @virtual
    async def test_it_outlives_the_death_of_all(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            service = cluster.nodes[1].transactions
            one = await service.begin("me", timeout_ms=60_000)
            end = await send(cluster, 1, one, "t", "a")
            await transact(cluster, 2, to("t", 0, "b"))
            aborted = await service.begin("other", timeout_ms=60_000)
            await send(cluster, 1, aborted, "t", "c")
            await service.abort(aborted, timeout_ms=1_000)
            await cluster.until(lambda: len(cluster.runner(1, "t").log.transactions.aborted) == 1)
            await after(1_500)
            for node_id in (1, 2, 3):
                await cluster.kill(node_id, power=True)
            for node_id in (1, 2, 3):
                await cluster.restart(node_id)
            await cluster.until(lambda: cluster.is_led("t"), timeout_ms=30_000)
            assert await read(cluster, 1, "t") == []
            await cluster.nodes[2].transactions.commit(commit_of(one, ("t", end, 1)))
            await cluster.until(
                lambda: all(cluster.runner(n, "t").stable_end == 6 for n in (1, 2, 3))
            )
            for node_id in (1, 2, 3):
                assert await read(cluster, node_id, "t") == ["a", "b"]


class TestSight:
    @virtual
    @pytest.mark.parametrize("node_id", [1, 3])
    async def test_who_waits_hears_of_markers_from_their_leaders(self, node_id: int) -> None:
        """The quorum hears of them as well, and of these it never does."""
        async with cluster_of() as cluster:
            await two_topics(cluster)
            for node in cluster.nodes.values():
                node.transaction_ends.finish = lambda marker: None
            one = await cluster.nodes[node_id].transactions.begin("me", timeout_ms=60_000)
            ends = [(name, await send(cluster, node_id, one, name, "a"), 1) for name in ("t", "u")]
            held = cluster.nodes[3].pool
            held.hold()
            commit = asyncio.ensure_future(
                cluster.nodes[node_id].transactions.commit(commit_of(one, *ends))
            )
            await after(500)
            # A replica has not stored the markers, so they are not committed.
            assert not commit.done()
            held.release()
            assert (await commit).is_visible
            assert cluster.image.ending
            assert await read(cluster, 1, "t") == await read(cluster, 2, "u") == ["a"]
            # And who comes when they are committed hears so at once.
            ended = await cluster.nodes[2].transactions.commit(commit_of(one, *ends))
            assert ended.is_visible

    @virtual
    async def test_where_leaders_do_not_tell_the_image_does(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)

            async def silent(*args: object) -> None:
                raise NotLeaderError("of an earlier release")

            for node in cluster.nodes.values():
                node.transaction_markers.committed = silent
            receipt = await transact(cluster, 3, to("t", 0, "a"), to("u", 0, "b"))
            assert receipt.is_visible
            assert not cluster.image.ending

    @virtual
    async def test_without_either_it_is_committed_and_not_known_to_be_seen(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            leader = cluster.runner(2, "u")
            leader.append_marker = lambda identity, ending: None  # type: ignore[method-assign]
            for is_repeat in (False, True):
                receipt = await transact(cluster, 3, to("u", 0, "a"), timeout_ms=400, key=KEY)
                assert not receipt.is_visible
                assert receipt.is_duplicate is is_repeat
            assert await read(cluster, 3, "u") == []
            del leader.append_marker
            await cluster.until(lambda: not cluster.image.ending)
            assert await read(cluster, 3, "u") == ["a"]

    @virtual
    async def test_who_has_not_heard_of_an_end_does_not_take_it_for_seen(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            one = await cluster.nodes[1].transactions.begin("me", timeout_ms=60_000)
            topic = cluster.image.topic("t")
            assert topic is not None
            identity, keys = (one.producer_id, one.producer_epoch), [(topic.topic_id, 0)]
            sight = cluster.nodes[2].transaction_sight
            assert not await sight.seen(identity, keys, timeout_ms=500)
            waiting = asyncio.ensure_future(sight.seen(identity, keys, timeout_ms=5_000))
            end = await send(cluster, 1, one, "t", "a")
            await cluster.nodes[3].transactions.commit(commit_of(one, ("t", end, 1)))
            assert await waiting
