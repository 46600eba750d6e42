"""Rules of fetch on any node: what a replica may answer by itself, and what the leader alone may judge."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from http_api.formats.selection import select
from milena.model.errors import (
    MalformedRequestError,
    NoLeaderError,
    NoQuorumError,
    NotLeaderError,
    NotReadyError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    ReplicaDamagedError,
    ReplicaNotFoundError,
    TopicNotFoundError,
)
from milena.model.requests import Acks, Doubt, FetchRequest, FetchResult
from storage.segments.segment import LOG_SUFFIX
from tests.support.clusters.compacted_cluster import CONFIGS, compact, update, write
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.overtaken import elect, overtaken, quorum_of, written
from tests.support.clusters.runners import values_of
from tests.support.clusters.transacting import send, to, transact
from tests.support.time.virtual_time import after, virtual


def reads_between(cluster: Cluster) -> list[tuple[int, int]]:
    return [(caller, target) for caller, target, kind, _ in cluster.network.calls if kind == "read"]


LATE = 10**15
"""A wall time after every record."""


def counted_barriers(cluster: Cluster, node_id: int) -> list[int]:
    """Grows by one with every barrier of the node."""
    quorum, found = quorum_of(cluster, node_id), []
    real = quorum.barrier

    async def barrier(*, timeout_ms: int) -> int:
        found.append(timeout_ms)
        return await real(timeout_ms=timeout_ms)

    quorum.barrier = barrier  # type: ignore[method-assign]
    return found


@virtual
async def test_a_response_does_not_end_where_a_segment_ends() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3), segment_bytes="65536")
        values = [letter * 40_000 for letter in "abcdef"]
        for value in values:
            await cluster.nodes[1].write("t", value)
        for node in cluster.nodes.values():
            (runner,) = node.replicas
            assert len(runner.log.state.table.segments) > 2
            assert values_of((await node.fetch("t", 0)).batches) == values
            assert values_of((await node.fetch("t", -3)).batches) == values[3:]


@virtual
async def test_passing_over_a_large_aborted_transaction_leaves_turns_to_other_work() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2))
        node = cluster.nodes[1]
        begun = await node.transactions.begin("id", timeout_ms=60_000)
        for _ in range(8):
            await send(cluster, 1, begun, "t", *["x" * 1_000] * 1_000)
        await node.transactions.abort(begun, timeout_ms=5_000)
        await node.write("t", "a")
        reading = asyncio.create_task(node.fetch("t", 0))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert values_of((await reading).batches) == ["a"]
        assert turns > 5


class TestWhoAnswers:
    @virtual
    async def test_a_follower_answers_below_its_own_high_watermark(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a", "b")
            result = await cluster.nodes[1].fetch("t", 0, max_bytes=1)
            assert values_of(result.batches) == ["a"]
            assert reads_between(cluster) == []

    @virtual
    async def test_a_node_without_a_copy_asks_the_leader(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a")
            assert values_of((await cluster.nodes[3].fetch("t", 0)).batches) == ["a"]
            assert reads_between(cluster) == [(3, 2)]

    @virtual
    @pytest.mark.parametrize("offset", ["latest", "earliest", -1, 99])
    async def test_a_follower_passes_on_what_it_may_not_judge(self, offset: int | str) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a")
            try:
                await cluster.nodes[1].fetch("t", offset)
            except OffsetOutOfRangeError:
                assert offset == 99
            assert reads_between(cluster) == [(1, 2)]

    @virtual
    async def test_a_follower_passes_on_questions_of_time(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a")
            await cluster.nodes[1].fetch("t", timestamp_ms=1)
            assert reads_between(cluster) == [(1, 2)]

    @virtual
    async def test_any_replica_answers_a_plain_offset_when_there_is_no_leader(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1), min_insync_replicas="2")
            await cluster.nodes[2].write("t", "a")
            await after(20)
            cluster.isolate(2)
            cluster.network.cut(2, 3)
            assert values_of((await cluster.nodes[3].fetch("t", 0)).batches) == ["a"]

    @virtual
    async def test_latest_without_a_leader_is_not_ready(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2,), min_insync_replicas="1")
            await cluster.kill(2)
            await after(500)
            with pytest.raises(NoLeaderError):
                await cluster.nodes[1].fetch("t", "latest")

    @virtual
    @pytest.mark.parametrize("offset", ["latest", "earliest", -1])
    async def test_a_leader_that_cannot_be_reached_is_none(self, offset: int | str) -> None:
        """Nobody knows of its end yet, so it is still the leader; to a reader that makes no difference."""
        async with cluster_of() as cluster:
            await cluster.create("t", (2,), min_insync_replicas="1")
            await cluster.kill(2)
            with pytest.raises(NoLeaderError, match="t-0: node 2 cannot be reached"):
                await cluster.nodes[1].fetch("t", offset)

    @virtual
    async def test_a_local_read_never_leaves_the_node(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a")
            assert await cluster.nodes[1].read("t", is_local=True) == ["a"]
            with pytest.raises(ReplicaNotFoundError):
                await cluster.nodes[3].fetch("t", 0, is_local=True)
            assert reads_between(cluster) == []

    @virtual
    async def test_a_replica_that_is_asked_by_a_node_does_not_pass_it_on(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a")
            topic = cluster.image.topic("t")
            assert topic is not None
            header: dict[str, object] = {
                "topic": topic.topic_id, "partition": 0, "offset": "latest", "timestamp": None,
                "max_bytes": 1, "timeout_ms": 0, "epoch": -1,
            }  # fmt: skip
            with pytest.raises(NotLeaderError):
                await cluster.nodes[1].reads.on_read(3, header, b"")
            with pytest.raises(NotLeaderError):
                await cluster.nodes[3].reads.on_read(1, header, b"")
            with pytest.raises(MalformedRequestError):
                await cluster.nodes[1].reads.on_read(3, {"topic": 1}, b"")

    @virtual
    async def test_a_leader_that_is_just_taking_over_is_waited_for(self) -> None:
        async with cluster_of(Cluster(disk_delay_ms=lambda rng: 20.0)) as cluster:
            creating = asyncio.ensure_future(cluster.create("t", (2, 1)))
            await cluster.until(lambda: cluster.image.topic("t") is not None)
            for node_id in (1, 2, 3):
                result = await cluster.nodes[node_id].fetch("t", "latest")
                assert result.start_offset == 0
            await creating


class TestALeaderThatStandsStill:
    """Its connections stay, and it says nothing more."""

    @virtual
    @pytest.mark.parametrize("offset", [1, "latest"])
    async def test_a_reader_that_waits_there_goes_on_with_the_next_leader(
        self, offset: int | str
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1), min_insync_replicas="1")
            await cluster.nodes[2].write("t", "a")
            await after(20)
            began = asyncio.get_running_loop().time()
            waiting = asyncio.ensure_future(cluster.nodes[3].fetch("t", offset, timeout_ms=60_000))
            await after(20)
            cluster.isolate(2)
            topic = cluster.image.topic("t")
            assert topic is not None
            await cluster.until(lambda: cluster.image.partitions[topic.topic_id, 0].leader == 1)
            await after(500)
            await cluster.nodes[1].write("t", "b")
            if offset == "latest":
                # Where the end is the leader alone may say, so the reader asks again.
                with pytest.raises(NotLeaderError):
                    await waiting
            else:
                assert values_of((await waiting).batches) == ["b"]
            assert asyncio.get_running_loop().time() - began < 20


class TestOffsets:
    @virtual
    async def test_names_and_counts_from_the_end(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a", "b", "c")
            fetch = cluster.nodes[3].fetch
            assert (await fetch("t", "earliest")).start_offset == 0
            assert (await fetch("t", "latest")).start_offset == 3
            assert (await fetch("t", -2)).start_offset == 1
            assert (await fetch("t", -99)).start_offset == 0
            with pytest.raises(MalformedRequestError):
                await fetch("t", "newest")
            offsets = await cluster.nodes[1].reads.offsets("t", 0)
            assert (offsets.log_start_offset, offsets.high_watermark) == (0, 3)

    @virtual
    async def test_a_time_is_the_first_record_that_is_not_older(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1))
            times = []
            for value in ("a", "b"):
                times.append(cluster.any.clock.wall_ms())
                await cluster.nodes[2].write("t", value)
                await after(1_000)
            fetch = cluster.nodes[3].fetch
            assert (await fetch("t", timestamp_ms=times[0])).start_offset == 0
            assert (await fetch("t", timestamp_ms=times[0] + 1)).start_offset == 1
            assert (await fetch("t", timestamp_ms=times[1] + 1)).start_offset == 2

    @virtual
    async def test_above_the_end_is_out_of_range_and_below_the_start_too(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a", "b")
            for node_id in (1, 2, 3):
                with pytest.raises(OffsetOutOfRangeError):
                    await cluster.nodes[node_id].fetch("t", 3)
            cluster.runner(2, "t").log.start.advance(1)
            with pytest.raises(OffsetOutOfRangeError, match="deleted"):
                await cluster.nodes[3].fetch("t", 0)

    @virtual
    @pytest.mark.parametrize("asked", [1, 2, 3])
    async def test_out_of_range_is_not_said_by_a_leader_that_was_replaced(self, asked: int) -> None:
        async with cluster_of() as cluster:
            await overtaken(cluster)
            runner = cluster.runner(2, "t")
            runner.check_offset(2, has_lease=True)
            with pytest.raises(OffsetOutOfRangeError):
                runner.check_offset(3, has_lease=True)
            assert (await cluster.nodes[asked].fetch("t", 3)).start_offset == 3
            await after(20)  # as a follower it has what it has copied
            assert values_of((await cluster.nodes[asked].fetch("t", 2)).batches) == ["c"]
            with pytest.raises(OffsetOutOfRangeError):
                await cluster.nodes[asked].fetch("t", 4)

    @virtual
    async def test_unknown_topics_and_partitions_are_not_found(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster)
            with pytest.raises(TopicNotFoundError):
                await cluster.nodes[1].fetch("nothing")
            with pytest.raises(PartitionNotFoundError):
                await cluster.nodes[1].fetch("t", partition=1)


class TestATopicThatWasCreatedAgain:
    """Node 3 has a copy of the former topic, and has not heard that it was deleted and created again."""

    @staticmethod
    async def created_again(cluster: Cluster, *new_values: str) -> Callable[[], bool]:
        """Return what lets node 3 reach the quorum again."""
        await cluster.create("t", (2, 3))
        await cluster.nodes[2].write("t", "old-a", "old-b")
        await after(20)
        quorum = quorum_of(cluster, 3)
        heard, quorum._is_reachable = quorum._is_reachable, lambda: False
        await cluster.nodes[1].admin.delete_topic("t")
        await cluster.create("t", (1, 2))
        for value in new_values:
            await cluster.nodes[1].write("t", value)
        assert cluster.nodes[3].metadata.image.topic_ids["t"] != cluster.image.topic_ids["t"]
        return heard

    @virtual
    @pytest.mark.parametrize("offset", [0, 1, "earliest"])
    @pytest.mark.parametrize("timeout_ms", [0, 100])
    async def test_no_record_of_the_former_one_is_read(
        self, offset: int | str, timeout_ms: int
    ) -> None:
        async with cluster_of() as cluster:
            heard = await self.created_again(cluster, "new-a", "new-b")
            quorum_of(cluster, 3)._is_reachable = heard
            result = await cluster.nodes[3].fetch("t", offset, timeout_ms=timeout_ms)
            assert values_of(result.batches)[0] == ("new-b" if offset == 1 else "new-a")
            assert result.topic_id == cluster.image.topic_ids["t"]

    @virtual
    async def test_an_offset_of_the_former_one_is_out_of_range(self) -> None:
        async with cluster_of() as cluster:
            heard = await self.created_again(cluster)
            quorum_of(cluster, 3)._is_reachable = heard
            with pytest.raises(OffsetOutOfRangeError):
                await cluster.nodes[3].fetch("t", 1)

    @virtual
    async def test_a_node_that_is_cut_off_serves_what_it_has(self) -> None:
        async with cluster_of() as cluster:
            await self.created_again(cluster, "new-a")
            result = await cluster.nodes[3].fetch("t", 0)
            assert values_of(result.batches) == ["old-a", "old-b"]

    @virtual
    async def test_a_leader_that_does_not_know_it_yet_costs_no_answer(self) -> None:
        """Node 1 leads by now, as follower 3 has heard. Node 1 has not, and refuses the question."""
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[2].write("t", "a")
            await after(20)
            quorum_of(cluster, 1)._is_reachable = lambda: False
            await elect(cluster, leader=1, isr=(1, 2, 3), by=3)
            barriers = counted_barriers(cluster, 3)
            result = await cluster.nodes[3].fetch("t", 0)
            assert values_of(result.batches) == ["a"]
            assert len(barriers) == 1


class TestTheEndAfterAPlannedChange:
    """The former leader has its lease, and is the last to hear that another one leads and has written on."""

    @virtual
    @pytest.mark.parametrize("asked", [1, 2, 3])
    async def test_every_word_for_the_end_means_the_new_leaders(self, asked: int) -> None:
        for question, start in (("latest", 3), (-1, 2), (-99, 0), (LATE, 3)):
            async with cluster_of() as cluster:
                await overtaken(cluster)
                fetch = cluster.nodes[asked].fetch
                if question is LATE:
                    result = await fetch("t", timestamp_ms=LATE)
                else:
                    result = await fetch("t", question)
                assert result.start_offset == start, question

    @virtual
    @pytest.mark.parametrize("asked", [1, 2, 3])
    async def test_the_readable_range_reaches_to_the_new_leaders_end(self, asked: int) -> None:
        async with cluster_of() as cluster:
            await overtaken(cluster)
            offsets = await cluster.nodes[asked].reads.offsets("t", 0)
            assert (offsets.log_start_offset, offsets.high_watermark) == (0, 3)

    @virtual
    async def test_a_node_that_heard_as_little_asks_the_new_leader_in_the_end(self) -> None:
        async with cluster_of() as cluster:
            await overtaken(cluster, deaf=(2, 3))
            offsets = await cluster.nodes[3].reads.offsets("t", 0)
            assert offsets.high_watermark == 3
            assert reads_between(cluster)[-2:] == [(3, 2), (3, 1)]

    @virtual
    async def test_a_time_that_is_found_asks_nobody(self) -> None:
        async with cluster_of() as cluster:
            await overtaken(cluster)
            barriers = counted_barriers(cluster, 2)
            assert (await cluster.nodes[2].fetch("t", timestamp_ms=1)).start_offset == 0
            assert (await cluster.nodes[2].fetch("t", "earliest")).start_offset == 0
            assert (await cluster.nodes[2].fetch("t", 1)).high_watermark == 2
            assert barriers == []

    @virtual
    async def test_questions_that_wait_together_cost_one_round_trip(self) -> None:
        async with cluster_of(Cluster(network_ms=lambda rng: 5.0)) as cluster:
            await written(cluster, "a")
            cluster.log.delay_ms = lambda: 5.0
            barriers = counted_barriers(cluster, 2)
            asked = [
                cluster.nodes[node_id].reads.offsets("t", 0)
                for node_id in (1, 2, 3)
                for _ in range(50)
            ]
            for offsets in await asyncio.gather(*asked):
                assert offsets.high_watermark == 1
            # One for those that were asked here, and one each for what other nodes passed on meanwhile.
            assert len(barriers) <= 3

    @virtual
    async def test_who_alone_is_in_sync_needs_to_ask_nobody(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2,))
            await cluster.nodes[2].write("t", "a")
            barriers = counted_barriers(cluster, 2)
            assert (await cluster.nodes[2].fetch("t", "latest")).start_offset == 1
            with pytest.raises(OffsetOutOfRangeError):
                await cluster.nodes[2].fetch("t", 2)
            assert barriers == []

    @virtual
    async def test_without_a_quorum_nobody_knows(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a")
            quorum_of(cluster, 2)._is_reachable = lambda: False
            with pytest.raises(NoQuorumError):
                await cluster.nodes[2].fetch("t", "latest")
            assert values_of((await cluster.nodes[2].fetch("t", 0)).batches) == ["a"]


async def read_by_offset(cluster: Cluster, node_id: int, offset: int) -> list[str]:
    return values_of((await cluster.nodes[node_id].fetch("t", offset)).batches)


async def read_all(cluster: Cluster, node_id: int, offset: int) -> list[str]:
    return values_of((await cluster.nodes[node_id].fetch("t", 0)).batches)[offset:]


async def read_waiting(cluster: Cluster, node_id: int, offset: int) -> list[str]:
    return values_of((await cluster.nodes[node_id].fetch("t", offset, timeout_ms=9_000)).batches)


async def read_last(cluster: Cluster, node_id: int, offset: int) -> list[str]:
    del offset
    return values_of((await cluster.nodes[node_id].fetch("t", -1)).batches)


async def read_behind_latest(cluster: Cluster, node_id: int, offset: int) -> list[str]:
    start = (await cluster.nodes[node_id].fetch("t", "latest")).start_offset
    assert start == offset + 1
    return await read_by_offset(cluster, node_id, offset)


async def read_by_time(cluster: Cluster, node_id: int, offset: int) -> list[str]:
    result = await cluster.nodes[node_id].fetch("t", timestamp_ms=1)
    return values_of(result.batches)[offset:]


async def read_to_the_end(cluster: Cluster, node_id: int, offset: int) -> list[str]:
    return (await cluster.nodes[node_id].read("t"))[offset:]


async def read_to_known_end(cluster: Cluster, node_id: int, offset: int) -> list[str]:
    offsets = await cluster.nodes[node_id].reads.offsets("t", 0)
    assert offsets.high_watermark == offset + 1
    return await read_by_offset(cluster, node_id, offset)


WAYS_TO_READ = [
    read_by_offset,
    read_all,
    read_waiting,
    read_last,
    read_behind_latest,
    read_by_time,
    read_to_the_end,
    read_to_known_end,
]


class TestWhatWasAcknowledged:
    """It is in every answer whose read began later, on every node: leader 2, follower 1, and 3 without a copy."""

    @virtual
    @pytest.mark.parametrize("read", WAYS_TO_READ)
    @pytest.mark.parametrize("asked", [1, 2, 3])
    async def test_it_is_read_at_once_on_every_node(
        self, asked: int, read: Callable[[Cluster, int, int], Awaitable[list[str]]]
    ) -> None:
        async with cluster_of(Cluster(network_ms=lambda rng: 5.0)) as cluster:
            await cluster.create("t", (2, 1))
            for offset, writer in enumerate((1, 2, 3, 1)):
                await cluster.nodes[writer].write("t", f"v{offset}")
                assert await read(cluster, asked, offset) == [f"v{offset}"]

    @virtual
    @pytest.mark.parametrize("asked", [1, 2, 3])
    @pytest.mark.parametrize("is_uncommitted", [False, True])
    async def test_a_transaction_that_is_visible_is_read_at_once(
        self, asked: int, is_uncommitted: bool
    ) -> None:
        async with cluster_of(Cluster(network_ms=lambda rng: 5.0)) as cluster:
            await cluster.until(lambda: cluster.image.feature_level >= 6)
            await cluster.create("t", (2, 1))
            for number, writer in enumerate((1, 2, 3)):
                receipt = await transact(cluster, writer, to("t", 0, f"v{number}"))
                assert receipt.is_visible
                ((written_at,),) = receipt.receipts
                offset = written_at.offset
                assert offset is not None
                request = FetchRequest(
                    topic="t",
                    partition=0,
                    offset=offset,
                    timestamp_ms=None,
                    max_bytes=1,
                    timeout_ms=0,
                    is_local=False,
                    is_uncommitted=is_uncommitted,
                )
                result = await cluster.nodes[asked].reads.fetch(request)
                assert values_of(result.batches) == [f"v{number}"]

    @virtual
    async def test_a_copy_that_is_behind_passes_the_read_on(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1), min_insync_replicas="1")
            await cluster.nodes[2].write("t", "a")
            await after(20)
            cluster.network.cut(1, 2)
            await cluster.until(lambda: cluster.isr_of("t") == (2,))
            await cluster.nodes[2].write("t", "b")
            # The link is back, and the copy has not fetched yet.
            runner = cluster.runner(1, "t")
            cluster.nodes[1].replicas.fetchers.assign(runner, None)
            cluster.heal()
            await after(20)
            assert runner.log.log_end_offset == 1
            assert values_of((await cluster.nodes[1].fetch("t", 1)).batches) == ["b"]
            assert values_of((await cluster.nodes[1].fetch("t", 0)).batches) == ["a", "b"]

    @virtual
    async def test_who_cannot_ask_the_leader_tells_what_there_is_and_not_that_it_is_all(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a")
            cluster.network.cut(1, 2)
            assert values_of((await cluster.nodes[1].fetch("t", 0)).batches) == ["a"]
            for timeout_ms in (0, 100):
                with pytest.raises(NoLeaderError):
                    await cluster.nodes[1].fetch("t", 1, timeout_ms=timeout_ms)
            assert (await cluster.nodes[1].fetch("t", 1, is_local=True)).batches == b""

    @virtual
    @pytest.mark.parametrize("asked", [1, 2, 3])
    async def test_a_leader_that_was_replaced_does_not_tell_that_there_is_no_more(
        self, asked: int
    ) -> None:
        async with cluster_of() as cluster:
            await overtaken(cluster)
            assert (await cluster.nodes[2].fetch("t", 2, is_local=True)).batches == b""
            assert values_of((await cluster.nodes[asked].fetch("t", 2)).batches) == ["c"]

    @virtual
    async def test_a_leader_without_a_lease_does_not_tell_that_there_is_no_more(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[2].write("t", "a")
            cluster.isolate(2)
            await after(2_500)
            assert await cluster.nodes[1].write("t", "b")
            with pytest.raises(NotReadyError):
                await cluster.nodes[2].fetch("t", 1)
            cluster.heal()

    @virtual
    async def test_a_reader_that_waits_asks_once_when_it_begins_and_once_when_it_ends(
        self,
    ) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a")
            barriers = counted_barriers(cluster, 1)
            reading = asyncio.ensure_future(cluster.nodes[1].fetch("t", 1, timeout_ms=30_000))
            await after(29_000)
            assert (reads_between(cluster), barriers) == ([(1, 2)], [])
            assert (await reading).batches == b""
            assert (len(reads_between(cluster)), len(barriers)) == (1, 1)

    @virtual
    async def test_readers_at_the_end_share_their_questions(self) -> None:
        async with cluster_of(Cluster(network_ms=lambda rng: 5.0)) as cluster:
            await written(cluster, "a")
            barriers = counted_barriers(cluster, 1)
            reading = [cluster.nodes[1].fetch("t", 1) for _ in range(50)]
            assert {r.batches for r in await asyncio.gather(*reading)} == {b""}
            # The first one's question is under way when the others ask.
            assert (len(reads_between(cluster)), len(barriers)) <= (2, 3)

    @virtual
    async def test_an_answer_that_its_size_ends_asks_nobody(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a", "b")
            await cluster.nodes[1].fetch("t", 0, max_bytes=1)
            assert reads_between(cluster) == []

    @virtual
    async def test_who_wants_no_confirmation_asks_no_quorum(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a")
            barriers = [counted_barriers(cluster, node_id) for node_id in (1, 2, 3)]
            for node_id in (1, 2, 3):
                request = FetchRequest(
                    topic="t",
                    partition=0,
                    offset=1,
                    timestamp_ms=None,
                    max_bytes=1,
                    timeout_ms=0,
                    is_local=False,
                    is_unconfirmed=True,
                )
                assert (await cluster.nodes[node_id].reads.fetch(request)).batches == b""
            assert barriers == [[], [], []]


class TestCommitted:
    @virtual
    async def test_nothing_above_the_high_watermark_is_read(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a")
            cluster.network.cut(1, 2)
            await cluster.nodes[2].write("t", "b", acks=Acks.LEADER)
            result = await cluster.nodes[2].fetch("t", 0)
            assert values_of(result.batches) == ["a"]
            assert result.high_watermark == 1
            assert (await cluster.nodes[2].fetch("t", 1)).batches == b""
            cluster.heal()

    @virtual
    async def test_a_reader_at_the_end_waits_for_the_next_commit(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a")
            for node_id in (1, 2, 3):
                end = (await cluster.nodes[2].fetch("t", "latest")).start_offset
                reading = asyncio.ensure_future(
                    cluster.nodes[node_id].fetch("t", end, timeout_ms=10_000)
                )
                await after(200)
                assert not reading.done()
                await cluster.nodes[2].write("t", f"for {node_id}")
                await after(20)
                assert values_of(reading.result().batches) == [f"for {node_id}"]

    @virtual
    async def test_a_reader_that_waits_in_vain_gets_an_empty_answer(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a")
            for node_id in (1, 2, 3):
                began = cluster.any.clock.now_ms()
                result = await cluster.nodes[node_id].fetch("t", 1, timeout_ms=700)
                assert (result.batches, result.start_offset) == (b"", 1)
                assert cluster.any.clock.now_ms() - began == 700

    @virtual
    async def test_a_new_leader_judges_no_end_before_it_knows_it(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[2].write("t", "a")
            leader = cluster.runner(2, "t").leader
            assert leader is not None
            leader.epoch_start_offset = 5
            for offset in ("latest", -1, 9):
                with pytest.raises(NotReadyError):
                    await cluster.nodes[2].fetch("t", offset)
            assert (await cluster.nodes[2].fetch("t", 0)).high_watermark == 1

    @virtual
    async def test_a_leader_that_is_cut_off_judges_no_end(self) -> None:
        # Others may have written on: a reader that is told "out of range" would skip or repeat records.
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1, 3))
            await cluster.nodes[2].write("t", "a")
            cluster.isolate(2)
            await after(2_500)
            assert await cluster.nodes[1].write("t", "b")
            for offset in ("latest", -1, 2):
                with pytest.raises(NotReadyError):
                    await cluster.nodes[2].fetch("t", offset)
            assert values_of((await cluster.nodes[2].fetch("t", 0)).batches) == ["a"]
            cluster.heal()


def offsets_in(result: FetchResult) -> list[int]:
    selection = select(result, count=None, bytes_max=1 << 20)
    return [offset for piece in selection.slices for offset in piece.offsets]


def next_offset(result: FetchResult) -> int:
    return select(result, count=None, bytes_max=1 << 20).next_offset


class TestCompactedLogs:
    @virtual
    async def test_a_reader_of_what_is_gone_gets_what_comes_next(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2), **CONFIGS)
            await update(cluster, 20)
            await compact(cluster, 1, 2)
            for node_id in (1, 2, 3):
                for offset in (0, 7, 75, 76):
                    result = await cluster.nodes[node_id].fetch("t", offset, max_bytes=1)
                    assert result.start_offset == offset
                    assert offsets_in(result) == [76, 77, 78, 79]
                result = await cluster.nodes[node_id].fetch("t", 78, max_bytes=1)
                assert offsets_in(result) == [78, 79]

    @virtual
    async def test_a_time_names_the_first_record_that_is_left(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2), **CONFIGS)
            await update(cluster, 20)
            await compact(cluster, 1, 2)
            result = await cluster.nodes[2].fetch("t", timestamp_ms=1)
            assert result.start_offset == 76

    @virtual
    async def test_a_reader_waits_where_nothing_is_left_up_to_the_end(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2), **CONFIGS)
            await write(cluster, ("a", "1"))
            await write(cluster, ("a", None))
            await after(1_100)
            for _ in range(8):
                await compact(cluster, 1, 2)
            result = await cluster.nodes[1].fetch("t", 0)
            assert (offsets_in(result), next_offset(result)) == ([], 2)
            waiting = asyncio.ensure_future(cluster.nodes[1].fetch("t", 0, timeout_ms=2_000))
            await after(1_000)
            assert not waiting.done()
            await write(cluster, ("b", "1"))
            result = await waiting
            assert (offsets_in(result), next_offset(result)) == ([2], 3)
            began = asyncio.get_running_loop().time()
            result = await cluster.nodes[2].fetch("t", 3, timeout_ms=2_000)
            assert asyncio.get_running_loop().time() - began >= 2
            assert result.batches == b""


def doubts_of(cluster: Cluster) -> dict[int, list[int | None]]:
    """What each node's scrubber hears, by node."""
    found: dict[int, list[int | None]] = {}
    for node_id, node in cluster.nodes.items():
        heard = found.setdefault(node_id, [])
        node.scrubber.doubt = lambda _, offset, heard=heard: heard.append(offset)  # type: ignore[method-assign, misc]
    return found


def segment_of(cluster: Cluster, node_id: int) -> str:
    """The file of a copy of ``t``."""
    directory = cluster.runner(node_id, "t").log.replica.directory
    paths = cluster.files[node_id].paths()
    (path,) = (p for p in paths if p.startswith(directory) and p.endswith(LOG_SUFFIX))
    return path


def fail_reads(cluster: Cluster, node_id: int) -> None:
    """The next read of this copy does not find batches on the disk."""
    path = segment_of(cluster, node_id)
    cluster.files[node_id].evict(path)
    cluster.files[node_id].fail_next_read(path)


def doubt(offset: int, broker_id: int | None = 2, topic: str = "t") -> Doubt:
    return Doubt(topic=topic, partition=0, offset=offset, broker_id=broker_id)


class TestDamage:
    """Topic ``t`` is led by node 2, node 1 has a copy."""

    @virtual
    async def test_the_answer_says_whose_copy_it_is_of(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a")
            asked = {n: (await node.fetch("t", 0)).broker_id for n, node in cluster.nodes.items()}
            assert asked == {1: 1, 2: 2, 3: 2}

    @virtual
    @pytest.mark.parametrize("asked", [1, 2, 3])
    @pytest.mark.parametrize("broker_id", [1, 2, None])
    async def test_whose_copy_was_read_hears_what_its_reader_found(
        self, asked: int, broker_id: int | None
    ) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a", "b")
            heard = doubts_of(cluster)
            await cluster.nodes[asked].reads.doubt(doubt(1, broker_id))
            owner = broker_id or 2
            assert heard == {n: [1] if n == owner else [] for n in (1, 2, 3)}

    @virtual
    async def test_what_is_not_there_is_not_doubted(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a", "b")
            await cluster.nodes[2].delete_records("t", 1)
            heard = doubts_of(cluster)
            for asked in (2, 3):
                for offset in (-1, 0, 2, 1 << 62):
                    await cluster.nodes[asked].reads.doubt(doubt(offset))
                await cluster.nodes[asked].reads.doubt(doubt(1, topic="nothing"))
                await cluster.nodes[asked].reads.doubt(doubt(1, 3))
                wrong = Doubt(topic="t", partition=7, offset=1)
                await cluster.nodes[asked].reads.doubt(wrong)
            assert heard == {1: [], 2: [], 3: []}

    @virtual
    async def test_a_node_is_told_once_at_a_time_however_many_readers_there_are(self) -> None:
        async with cluster_of(Cluster(network_ms=lambda rng: 10.0)) as cluster:
            await written(cluster, "a", "b")
            heard = doubts_of(cluster)
            reads = cluster.nodes[3].reads
            await asyncio.gather(*(reads.doubt(doubt(1)) for _ in range(100)))
            assert heard[2] == [1]
            await reads.doubt(doubt(1))
            assert heard[2] == [1, 1], "it goes on complaining"

    @virtual
    async def test_a_node_that_cannot_be_told_keeps_no_reader_waiting(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a", "b")
            cluster.network.cut(2, 3)
            began = asyncio.get_running_loop().time()
            await cluster.nodes[3].reads.doubt(doubt(1))
            assert asyncio.get_running_loop().time() - began <= 1
            assert not cluster.nodes[3].reads._telling

    @virtual
    async def test_to_a_node_of_an_earlier_release_it_is_a_read(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a", "b")
            await cluster.nodes[3].reads.doubt(doubt(1))
            ((_, _, _, fields),) = [c for c in cluster.network.calls if c[2] == "read"]
            earlier = {name: value for name, value in fields.items() if name != "bad"}
            answer, body = await cluster.nodes[2].reads.on_read(3, earlier, b"")
            assert answer["start"] == 1
            assert values_of(bytes(body[0])) == ["b"]
            assert (await cluster.nodes[2].reads.on_read(3, fields, b"")) == ({}, [])

    @virtual
    async def test_payloads_are_sent_as_they_are_and_their_reader_says_where(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a", "b", "c")
            whole = len(cluster.runner(2, "t").log.read_span(0, max_bytes=1))
            cluster.files[2].flip_bit(segment_of(cluster, 2), whole + 80)
            for node_id in (2, 3):
                result = await cluster.nodes[node_id].fetch("t", 0)
                chosen = select(result, count=None, bytes_max=1 << 20)
                assert (chosen.next_offset, chosen.damaged_at, result.broker_id) == (1, 1, 2)

    @virtual
    @pytest.mark.parametrize(("byte", "bit"), [(36, 5), (40, 0)], ids=["control", "record count"])
    async def test_a_batch_whose_damage_hides_its_record_is_not_passed_over(
        self, byte: int, bit: int
    ) -> None:
        """It looks like a batch without records, and the node reads on behind it."""
        async with cluster_of() as cluster:
            await written(cluster, "a", "b", "c")
            cluster.files[2].flip_bit(segment_of(cluster, 2), byte, bit)
            result = await cluster.nodes[2].fetch("t", 0, max_bytes=1)
            assert (values_of(result.batches), result.broker_id) == (["a"], 1)

    @virtual
    async def test_the_last_records_are_not_counted_without_a_damaged_batch(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a", "b", "c")
            heard = doubts_of(cluster)
            whole = len(cluster.runner(2, "t").log.read_span(0, max_bytes=1))
            cluster.files[2].flip_bit(segment_of(cluster, 2), whole + 36, 5)
            assert values_of((await cluster.nodes[2].fetch("t", -1)).batches) == ["c"]
            with pytest.raises(ReplicaDamagedError, match="offset 1"):
                await cluster.nodes[2].fetch("t", -2)
            assert heard[2] == [1]

    @virtual
    async def test_a_damaged_header_among_the_last_records_is_reported_where_it_is(self) -> None:
        """Without a place, only closed segments would be checked: the damage would stay, and so would the error."""
        async with cluster_of() as cluster:
            await written(cluster, "a", "b", "c")
            heard = doubts_of(cluster)
            whole = len(cluster.runner(2, "t").log.read_span(0, max_bytes=1))
            cluster.files[2].flip_bit(segment_of(cluster, 2), whole + 10)
            with pytest.raises(ReplicaDamagedError, match="offset 1"):
                await cluster.nodes[2].fetch("t", -3)
            assert heard[2] == [1]

    @virtual
    async def test_damage_that_only_the_lag_of_a_group_needed_to_read_is_reported(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a", "b")
            heard = doubts_of(cluster)
            runner = cluster.runner(2, "t")
            whole = len(runner.log.read_span(0, max_bytes=1))
            cluster.files[2].flip_bit(segment_of(cluster, 2), whole + 36, 5)
            assert await cluster.nodes[2].history._lag(runner, 0) is None
            assert heard[2] == [1]

    @virtual
    async def test_damage_that_only_the_age_of_a_record_needed_to_read_is_reported(self) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a", "b", "c")
            heard = doubts_of(cluster)
            runner = cluster.runner(2, "t")
            whole = len(runner.log.read_span(0, max_bytes=1))
            cluster.files[2].flip_bit(segment_of(cluster, 2), whole + 20)
            assert await cluster.nodes[2].reads.appended_ms(runner, 1) is None
            assert heard[2] == [1]

    @virtual
    async def test_damage_in_a_batch_whose_first_record_is_deleted_is_reported_above_the_log_start(
        self,
    ) -> None:
        """Nothing is checked at an offset that was deleted."""
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1))
            await cluster.nodes[2].write("t", "a", "b")
            await cluster.nodes[2].delete_records("t", 1)
            heard = doubts_of(cluster)
            cluster.files[2].flip_bit(segment_of(cluster, 2), 36, 5)
            with pytest.raises(ReplicaDamagedError, match="offset 1"):
                await cluster.nodes[2].fetch("t", -1)
            assert heard[2] == [1]

    @virtual
    async def test_damage_behind_batches_without_records_is_reported_where_it_is(self) -> None:
        """It may lie in another segment than the offset of the read."""
        async with cluster_of() as cluster:
            await cluster.create("t", (2, 1))
            await transact(cluster, 2, to("t", 0, "a"))
            for value in "bc":
                await cluster.nodes[2].write("t", value)
            heard = doubts_of(cluster)
            whole = len(cluster.runner(2, "t").log.read_span(0, max_bytes=1 << 20, end_offset=2))
            cluster.files[2].flip_bit(segment_of(cluster, 2), whole + 36, 5)
            with pytest.raises(ReplicaDamagedError, match="offset 2"):
                await cluster.nodes[2].fetch("t", 1, max_bytes=1, is_local=True)
            assert heard[2] == [2]

    @virtual
    @pytest.mark.parametrize("asked", [2, 3])
    async def test_what_cannot_be_read_here_is_read_from_another_copy(self, asked: int) -> None:
        async with cluster_of() as cluster:
            await written(cluster, "a", "b", "c")
            heard = doubts_of(cluster)
            fail_reads(cluster, 2)
            result = await cluster.nodes[asked].fetch("t", 1)
            assert (result.broker_id, values_of(result.batches)) == (1, ["b", "c"])
            assert set(heard[2]) == {1}
            assert heard[1] == heard[3] == []

    @virtual
    @pytest.mark.parametrize("asked", [1, 2, 3])
    async def test_damage_at_the_leader_is_said_even_if_another_copy_ends_before_it(
        self, asked: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """That copy refuses, since it does not lead. The client would look for a leader that there is."""
        async with cluster_of() as cluster:
            await written(cluster, "a", "b", "c")
            for other in (1, 3):
                monkeypatch.setattr(cluster.nodes[other].reads, "_can_serve", lambda *_: False)
            fail_reads(cluster, 2)
            with pytest.raises(ReplicaDamagedError, match="offset 1 are damaged in the copy of"):
                await cluster.nodes[asked].fetch("t", 1)

    @virtual
    @pytest.mark.parametrize("asked", [2, 3])
    async def test_what_no_other_copy_has_is_an_error_that_passes(self, asked: int) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2,), min_insync_replicas="1")
            for value in "abc":
                await cluster.nodes[2].write("t", value)
            fail_reads(cluster, 2)
            with pytest.raises(ReplicaDamagedError, match="t-0: the records at offset 1 are"):
                await cluster.nodes[asked].fetch("t", 1)
            fail_reads(cluster, 2)
            # The last two are looked for in the log: which offset they begin at is not known before.
            with pytest.raises(ReplicaDamagedError, match="t-0: node 2 cannot read its copy"):
                await cluster.nodes[asked].fetch("t", -2)
            fail_reads(cluster, 2)
            with pytest.raises(ReplicaDamagedError):
                await cluster.nodes[2].fetch("t", 1, is_local=True)
            fail_reads(cluster, 2)
            with pytest.raises(ReplicaDamagedError, match="t-0: the records at offset 0 are"):
                await cluster.nodes[asked].fetch("t", timestamp_ms=1)
            assert ReplicaDamagedError.is_retriable
