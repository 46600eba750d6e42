"""Rules of transactions that clients write step by step: what a commit names counts, once, and nothing else."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from http_api.ports.groups import Reset, ResetTarget
from milena.model.batch.header import ProducerStamp
from milena.model.errors import (
    DrainingError,
    FateUnknownError,
    InvalidProducerError,
    MemberNotFoundError,
    MilenaError,
    NoQuorumError,
    OffsetOutOfRangeError,
    StaleProducerEpochError,
    TooManyTransactionsError,
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
    ProducerTransaction,
)
from node.services.log_ends import LogEnds
from node.services.messages import OPEN_TRANSACTIONS, OpenTransactionAnswer
from node.services.transactions import service as transaction_service
from raft_meta.machine import producers
from raft_meta.machine import transactions as machine_transactions
from raft_meta.machine.commands import ForgetProducers, TransactionEnd
from raft_meta.machine.image import TransactionExtent
from raft_meta.machine.transactions import LEADER_EPOCHS_LEVEL
from storage.state.transactions import Identity
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.clusters.runners import batch, values_of
from tests.support.clusters.transacting import (
    commit_of,
    read,
    send,
    two_topics,
)
from tests.support.time.virtual_time import after, virtual
from tests.unit.node.services.test_produce import move_leader


async def check_ends(node: SimNode) -> None:
    """One record that is decided, one of an open transaction, and one behind it: both ends are told, everywhere."""
    offsets = await node.reads.offsets("t", 0)
    assert (offsets.high_watermark, offsets.last_stable_offset, offsets.readable_end) == (3, 1, 1)
    assert [offsets.lag_of(position) for position in (0, 1, 3, 4)] == [1, 0, 0, None]
    for is_uncommitted, end in ((False, 1), (True, 3)):
        for where in ("latest", "earliest", 0, 1, 2, 3, -1):
            found = await node.reads.fetch(
                FetchRequest(
                    topic="t",
                    partition=0,
                    offset=where,
                    timestamp_ms=None,
                    max_bytes=1 << 20,
                    timeout_ms=0,
                    is_local=False,
                    is_uncommitted=is_uncommitted,
                )
            )
            told = (found.high_watermark, found.last_stable_offset, found.readable_end)
            assert told == (3, 1, end), (is_uncommitted, where)
            assert where != "latest" or found.start_offset == end
    for to, offset in ((Reset.LATEST, 1), (0, 0), (2, 2), (3, 3)):
        target = ResetTarget(name=to) if isinstance(to, Reset) else ResetTarget(offset=to)
        (done,) = await node.groups.service.reset("g", "t", [0], target)
        assert done.offset == offset
    for beyond in (4, 99):
        refusal = rf"offset {beyond} of t-0 is above its end, 3; no offset was committed"
        with pytest.raises(OffsetOutOfRangeError, match=refusal):
            await node.groups.service.reset("g", "t", [0], ResetTarget(offset=beyond))
    with pytest.raises(OffsetOutOfRangeError, match="above its last stable offset, 1: a trans"):
        await node.deletions.delete_records("t", 0, 2, timeout_ms=1_000)
    (kept,) = await node.groups.service.committed("g")
    assert kept.offset == 3


KEY = IdempotencyKey(key_hash=b"k" * 16, body_hash=b"b" * 8)


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
    @pytest.mark.parametrize("asked", [1, 2, 3])
    @pytest.mark.parametrize("end", ["abort", "commit", "begin"])
    async def test_once_its_end_is_answered_no_leader_takes_a_write_of_it(
        self, end: str, asked: int
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.until(lambda: cluster.image.feature_level >= 6)
            topics = {1: "first", 2: "second", 3: "third"}
            for leader, topic in topics.items():
                await cluster.create(topic, (leader, *(b for b in topics if b != leader)))
            service = cluster.nodes[asked].transactions
            for leader, topic in topics.items():
                one = await service.begin("me", timeout_ms=30_000)
                if end == "abort":
                    await service.abort(one, timeout_ms=1_000)
                elif end == "commit":
                    await service.commit(commit_of(one))
                else:
                    await service.begin("me", timeout_ms=30_000)
                with pytest.raises(StaleProducerEpochError):
                    await send(cluster, leader, one, topic, "late")

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
                await check_ends(cluster.nodes[node_id])
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
    @pytest.mark.parametrize(
        ("group", "odd"),
        [("g", {"metadata": "m" * 5_000}), ("g", {"next_offset": 1 << 63}), ("g" * 256, {})],
        ids=["metadata", "offset", "group"],
    )
    async def test_a_commit_with_impossible_offsets_leaves_it_open(
        self, group: str, odd: dict[str, Any]
    ) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            node = cluster.nodes[1]
            one = await node.transactions.begin("me", timeout_ms=30_000)
            end = await send(cluster, 2, one, "t", "a")
            row = CommittedNext(topic="t", partition=0, next_offset=1)
            told = GroupOffsets(group="g", member_id=None, member_epoch=-1, offsets=(row,))
            bad = replace(told, group=group, offsets=(replace(row, **odd),))
            with pytest.raises(MilenaError):
                await node.transactions.commit(commit_of(one, ("t", end, 1), offsets=(bad,)))
            await node.transactions.commit(commit_of(one, ("t", end, 1), offsets=(told,)))
            assert await read(cluster, 3, "t") == ["a"]

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
    async def test_a_leader_that_was_deposed_and_holds_less_refuses_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            await cluster.until(lambda: cluster.image.feature_level >= LEADER_EPOCHS_LEVEL)
            node = cluster.nodes[3]
            one = await node.transactions.begin("me", timeout_ms=30_000)
            end = await send(cluster, 3, one, "t", "a")
            ask, asked = node.transaction_lookup.extent, []

            async def deposed_first(
                extent: TransactionExtent, identity: Identity, *, is_bound: bool
            ) -> OpenTransactionAnswer:
                asked.append(is_bound)
                if len(asked) == 1:
                    return OpenTransactionAnswer(end_offset=-1, records=0, leader_epoch=0)
                return await ask(extent, identity, is_bound=is_bound)

            monkeypatch.setattr(node.transaction_lookup, "extent", deposed_first)
            ended = await node.transactions.commit(commit_of(one, ("t", end, 1)))
            assert ended.is_visible
            assert asked == [True, False, True]
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
            await cluster.until(lambda: not cluster.runner(1, "t").log.writers.transactions.open)
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
    @pytest.mark.parametrize(
        "later",
        [DrainingError("stopping"), TooManyTransactionsError("full"), NoQuorumError("none")],
    )
    async def test_a_commit_whose_answer_is_lost_stays_unknown_when_the_next_attempt_is_refused(
        self, later: MilenaError
    ) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            service = cluster.nodes[1].transactions
            one = await service.begin("me", timeout_ms=30_000)
            commit = commit_of(one, ("t", await send(cluster, 1, one, "t", "a"), 1))
            end = cluster.nodes[1].transaction_ends.end

            async def refuse(_: TransactionEnd) -> None:
                raise later

            async def end_and_lose(ended: TransactionEnd) -> None:
                cluster.nodes[1].transaction_ends.end = refuse  # type: ignore[method-assign]
                await end(ended)
                raise FateUnknownError("the answer got lost")

            cluster.nodes[1].transaction_ends.end = end_and_lose  # type: ignore[method-assign]
            with pytest.raises(FateUnknownError):
                await service.commit(commit)
            assert await read(cluster, 3, "t") == ["a"]

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
                for o in (await service.open_transactions(older_than_ms=0)).found
            ] == [("t", 1, "open")]
            await after(4_000)
            assert (await service.open_transactions(older_than_ms=0)).found == []
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
            assert len({row.began_ms for row in told.found}) == 1
            assert [row.producer_name for row in told.found] == ["a", "b"]

    @virtual
    async def test_a_list_says_which_nodes_may_know_more(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            await cluster.create("alone", (3,))
            node = cluster.nodes[2].transactions
            one = await node.begin("me", timeout_ms=600_000)
            await send(cluster, 2, one, "t", "x")

            async def told() -> tuple[int, Sequence[int]]:
                found = await node.open_transactions(older_than_ms=0)
                return len(found.found), found.silent_nodes

            assert await told() == (1, [])
            cluster.network.lose_answers_to.add((2, OPEN_TRANSACTIONS.name))
            assert await told() == (0, [1, 3])
            cluster.network.lose_answers_to.clear()
            await cluster.kill(3)
            await cluster.until(lambda: not cluster.is_led("alone"))
            assert await told() == (1, [3])

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


async def read_behind(cluster: Cluster, node_id: int, offset: int) -> list[str]:
    """Return what a reader that does not wait gets from an offset on."""
    result = await cluster.nodes[node_id].reads.fetch(
        FetchRequest(
            topic="t",
            partition=0,
            offset=offset,
            timestamp_ms=None,
            max_bytes=1 << 20,
            timeout_ms=0,
            is_local=False,
        )
    )
    return values_of(result.batches)


async def end_by_allocation(node: SimNode, one: ProducerTransaction) -> None:
    await node.producers.allocate("me", timeout_ms=2_000)


async def end_by_commit(node: SimNode, one: ProducerTransaction) -> None:
    assert (await node.transactions.commit(commit_of(one, ("t", 1, 1)))).is_visible


async def end_by_refused_commit(node: SimNode, one: ProducerTransaction) -> None:
    """End it by a commit whose offsets the quorum refuses: the error says that it is aborted."""
    unknown = GroupOffsets(
        group="g",
        member_id="nobody",
        member_epoch=1,
        offsets=(CommittedNext(topic="t", partition=0, next_offset=1),),
    )
    with pytest.raises(MemberNotFoundError):
        await node.transactions.commit(commit_of(one, ("t", 1, 1), offsets=(unknown,)))


async def end_by_abort(node: SimNode, one: ProducerTransaction) -> None:
    assert (await node.transactions.abort(one, timeout_ms=1_000)).is_visible


async def end_by_beginning(node: SimNode, one: ProducerTransaction) -> None:
    assert (await node.transactions.begin("me", timeout_ms=30_000)).is_former_visible


async def end_without_waiting(node: SimNode, one: ProducerTransaction) -> None:
    """End it elsewhere without a wait; a repeated abort waits like the first one."""
    end = TransactionEnd(
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        is_commit=False,
        is_keyed=False,
        extents=(),
        offsets=(),
    )
    await node.transaction_ends.end(end)
    assert (await node.transactions.abort(one, timeout_ms=1_000)).is_visible


async def end_at_the_last_epoch(node: SimNode, one: ProducerTransaction) -> None:
    """Begin again where the name gets another producer id, since its epochs are used up."""
    two = await node.transactions.begin("me", timeout_ms=30_000)
    assert two.producer_id != one.producer_id
    assert two.is_former_visible


ENDS = {
    "commit": end_by_commit,
    "refused commit": end_by_refused_commit,
    "abort": end_by_abort,
    "abort again": end_without_waiting,
    "begin": end_by_beginning,
    "begin at the last epoch": end_at_the_last_epoch,
    "allocation": end_by_allocation,
}


class TestBehind:
    """A record that was acknowledged behind a transaction is read once any call has said that the transaction ended."""

    @virtual
    @pytest.mark.parametrize("asked", [1, 2, 3])
    @pytest.mark.parametrize("how", ENDS)
    async def test_it_is_read_on_every_node_once_an_end_is_answered(
        self, how: str, asked: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if how == "begin at the last epoch":
            for module in (producers, machine_transactions, transaction_service):
                monkeypatch.setattr(module, "PRODUCER_EPOCH_MAX", 1)
        async with cluster_of() as cluster:
            await two_topics(cluster)
            one = await cluster.nodes[asked].transactions.begin("me", timeout_ms=30_000)
            await send(cluster, asked, one, "t", "in it")
            await cluster.nodes[1].write("t", "behind")
            assert await read_behind(cluster, asked, 1) == []
            await ENDS[how](cluster.nodes[asked], one)
            found = await asyncio.gather(*(read_behind(cluster, n, 1) for n in (1, 2, 3)))
            assert found == [["behind"]] * 3

    @virtual
    @pytest.mark.parametrize("asked", [1, 2, 3])
    async def test_one_whose_time_is_over_is_listed_until_it_is_read(self, asked: int) -> None:
        async with cluster_of(Cluster(network_ms=lambda rng: 10.0)) as cluster:
            await two_topics(cluster)
            node = cluster.nodes[asked]
            one = await node.transactions.begin("me", timeout_ms=1_000)
            await send(cluster, asked, one, "t", "in it")
            await cluster.nodes[1].write("t", "behind")
            states = set()
            while told := (await node.transactions.open_transactions(older_than_ms=0)).found:
                states.update((row.state, row.first_offset, row.records) for row in told)
                assert [row.producer_name for row in told] == ["me"]
                await after(0.1)
            found = await asyncio.gather(*(read_behind(cluster, n, 1) for n in (1, 2, 3)))
            assert found == [["behind"]] * 3
            assert states == {("open", 0, 1), ("ending", 0, 1)}

    @virtual
    @pytest.mark.parametrize("how", ["abort", "begin"])
    async def test_its_end_is_not_called_seen_while_no_leader_can_write_it(self, how: str) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            service = cluster.nodes[3].transactions
            one = await service.begin("me", timeout_ms=30_000)
            await send(cluster, 3, one, "t", "in it")
            await cluster.nodes[1].write("t", "behind")
            leader = cluster.runner(1, "t")
            write = leader.append_marker
            leader.append_marker = lambda identity, ending: None  # type: ignore[method-assign]
            if how == "abort":
                assert not (await service.abort(one, timeout_ms=400)).is_visible
            else:
                assert not (await service.begin("me", timeout_ms=30_000)).is_former_visible
            assert await read_behind(cluster, 2, 1) == []
            leader.append_marker = write  # type: ignore[method-assign]
            if how == "abort":
                assert (await service.abort(one, timeout_ms=3_000)).is_visible
            else:
                assert (await service.begin("me", timeout_ms=30_000)).is_former_visible
            assert await read_behind(cluster, 2, 1) == ["behind"]

    @virtual
    async def test_its_end_follows_the_leader_of_the_partition(self) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            service = cluster.nodes[3].transactions
            one = await service.begin("me", timeout_ms=30_000)
            await send(cluster, 3, one, "t", "in it")
            await cluster.nodes[1].write("t", "behind")
            former = cluster.runner(1, "t")
            former.append_marker = lambda identity, ending: None  # type: ignore[method-assign]
            abort = asyncio.ensure_future(service.abort(one, timeout_ms=10_000))
            await after(500)
            assert not abort.done()
            await move_leader(cluster, 2)
            assert (await abort).is_visible
            found = await asyncio.gather(*(read_behind(cluster, n, 1) for n in (1, 2, 3)))
            assert found == [["behind"]] * 3
