"""Rules of transactions on any node: all of one takes effect or none, whoever dies, and readers see it so."""

import asyncio
from dataclasses import replace

import pytest

from milena.model.errors import (
    MilenaError,
    NoLeaderError,
    NotEnoughReplicasError,
    NotLeaderError,
    PartitionCountChangedError,
    PartitionNotFoundError,
    RequestTooLargeError,
    StaleMemberEpochError,
    TopicNotTransactionalError,
)
from milena.model.requests import (
    CommittedNext,
    GroupOffsets,
    IdempotencyKey,
    Records,
    TransactionReceipt,
    TransactionWrite,
)
from raft_meta.machine.commands import TransactionEnd
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.overtaken import created_again, deaf, quorum_of
from tests.support.clusters.transacting import (
    commit_of,
    committed_of,
    next_of,
    read,
    send,
    to,
    transact,
    two_topics,
)
from tests.support.groups.sim_members import Member
from tests.support.time.virtual_time import after, virtual
from tests.unit.node.services.test_produce import move_leader

KEY = IdempotencyKey(key_hash=b"k" * 16, body_hash=b"b" * 8)


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
    async def test_offsets_are_not_refused_because_a_node_does_not_know_their_member_yet(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await two_topics(cluster)
            quorum = quorum_of(cluster, 3)
            is_reachable, quorum._is_reachable = quorum._is_reachable, lambda: False
            member = Member(cluster, "m")
            await member.beat()
            await member.beat()
            quorum._is_reachable = is_reachable
            assert "g" not in cluster.nodes[3].metadata.image.groups
            owned = GroupOffsets(
                group="g",
                member_id="m",
                member_epoch=member.epoch,
                offsets=(CommittedNext(topic="t", partition=0, next_offset=1),),
            )
            await transact(cluster, 3, to("t", 0, "x"), offsets=(owned,))
            assert await read(cluster, 3, "t") == ["x"]

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
            await cluster.until(lambda: bool(cluster.runner(1, "t").log.writers.transactions.open))
            await cluster.kill(3)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await cluster.until(
                lambda: (
                    not any(cluster.runner(n, "t").log.writers.transactions.open for n in (1, 2))
                ),
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
            await cluster.until(
                lambda: len(cluster.runner(1, "t").log.writers.transactions.aborted) == 1
            )
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
                node.transaction_ends.finish = lambda key, identity: None
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

            async def silent(*args: object, **options: object) -> None:
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


@virtual
@pytest.mark.parametrize(
    ("before", "after_"),
    [({"max_message_bytes": "1024"}, "99999"), ({"flush_messages": "2"}, "1")],
)
async def test_settings_that_another_node_has_changed_refuse_nothing(
    before: dict[str, str], after_: str
) -> None:
    async with cluster_of() as cluster:
        await cluster.until(lambda: cluster.image.feature_level >= 6)
        await cluster.create("t", (3, 1, 2), **before)
        (name,) = before
        with deaf(cluster, 3):
            change = {name.replace("_", "."): after_}
            await cluster.nodes[1].admin.alter_configs("t", change, is_validate_only=False)
        receipt = await transact(cluster, 3, to("t", 0, "x" * 3_000))
        assert receipt.receipts[0][0].offset == 0


@virtual
async def test_an_offset_is_that_of_the_present_topic_of_a_name() -> None:
    async with cluster_of() as cluster:
        await cluster.until(lambda: cluster.image.feature_level >= 6)
        await cluster.create("out", (3, 1, 2))
        await created_again(cluster, 3)
        await transact(cluster, 3, to("out", 0, "a"), offsets=(next_of("g", "t", 1),))
        committed = await cluster.nodes[1].groups.service.committed("g")
        assert [(row.topic, row.offset) for row in committed] == [("t", 1)]


@virtual
async def test_an_offset_in_the_commit_of_a_session_is_that_of_the_present_topic_of_a_name() -> (
    None
):
    """For an offset of the former topic, the quorum would abort the whole transaction."""
    async with cluster_of() as cluster:
        await cluster.until(lambda: cluster.image.feature_level >= 6)
        await cluster.create("out", (3, 1, 2))
        begun = await cluster.nodes[3].transactions.begin("id", timeout_ms=60_000)
        end = await send(cluster, 3, begun, "out", "a")
        await created_again(cluster, 3)
        commit = commit_of(begun, ("out", end, 1), offsets=(next_of("g", "t", 1),))
        await cluster.nodes[3].transactions.commit(commit)
        committed = await cluster.nodes[1].groups.service.committed("g")
        assert [(row.topic, row.offset) for row in committed] == [("t", 1)]
