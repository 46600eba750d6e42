"""The last hour of whole nodes, as any of them tells it."""

import math
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from http_api.ports.groups import OffsetToCommit
from http_api.ports.node import HistoryView
from http_api.serving.openapi import MILENA_VERSION
from milena.model.clock import Clock
from milena.model.errors import CorruptLogError
from node.metrics.series import POINTS, STEP_MS
from node.peers.messages import Blob
from node.replica.runner import PartitionRunner
from node.services.history import DATES_MS_MAX, summed
from node.services.messages import HistoryAnswer
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.time.virtual_time import after, virtual

if TYPE_CHECKING:
    from node.context import NodeContext


def last(view: HistoryView, name: str, node_id: int | None = None) -> float:
    (found,) = [one for one in view.series if (one.name, one.node_id) == (name, node_id)]
    assert len(found.values) == POINTS
    return found.values[-1]


@virtual
async def test_any_node_tells_a_topics_hour_and_who_leads_what_is_busy() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1, 3))
        await after(STEP_MS)
        for number in range(20):
            await cluster.nodes[3].write("t", f"v{number}")
        await after(STEP_MS)
        for node in cluster.nodes.values():
            view = await node.history.of_topic("t")
            assert 1.9 < last(view, "records_in_per_second") < 2.1
            assert (view.silent_nodes, view.left_out) == ([], 0)
            (busy,) = view.busiest
            assert (busy.topic, busy.partition, busy.leader) == ("t", 0, 2)
            nodes = await node.history.of_nodes()
            assert last(nodes, "records_in_per_second", 2) > 1.9
            assert last(nodes, "records_in_per_second", 1) == 0
            assert last(nodes, "stored_bytes", 1) > 0
            assert last(nodes, "commit_ms_p99", 2) > 0
            assert math.isnan(last(nodes, "commit_ms_p99", 1))


@virtual
async def test_what_is_read_is_told_by_the_node_whose_copy_was_read() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1))
        for number in range(20):
            await cluster.nodes[2].write("t", f"v{number}")
        await after(STEP_MS)
        # Node 1 has a copy of its own, node 3 asks the leader.
        for offset in (0, 10, 20):
            await cluster.nodes[1].fetch("t", offset)
        await cluster.nodes[3].fetch("t", 5)
        await after(STEP_MS)
        nodes = await cluster.nodes[3].history.of_nodes()
        rates = [last(nodes, "records_out_per_second", id_) for id_ in (1, 2, 3)]
        assert rates == pytest.approx([3, 1.5, 0], rel=0.05)
        view = await cluster.nodes[3].history.of_topic("t")
        assert last(view, "records_out_per_second") == pytest.approx(4.5, rel=0.05)
        # Of the last minute, of which there were two looks; a partition is one, whichever copy was read.
        (busy,) = view.busiest
        assert (busy.partition, busy.leader) == (0, 2)
        assert busy.records_out_per_second == pytest.approx(2.25, rel=0.05)


@virtual
async def test_a_busy_partition_that_changed_its_leader_is_told_once_with_the_present_one() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 3))
        for number in range(20):
            await cluster.nodes[1].write("t", f"v{number}")
        await after(STEP_MS)
        cluster.isolate(2)
        await cluster.until(lambda: cluster.leader_of("t") == 3)
        for number in range(20):
            await cluster.nodes[1].write("t", f"w{number}")
        cluster.heal()
        await cluster.until(lambda: cluster.isr_of("t") == (2, 3))
        await after(STEP_MS)
        for node in cluster.nodes.values():
            view = await node.history.of_nodes()
            assert view.silent_nodes == []
            assert [(row.topic, row.partition, row.leader) for row in view.busiest] == [("t", 0, 3)]


@virtual
async def test_sizes_are_of_the_replicas_of_all_nodes() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1))
        topic_id = cluster.image.topic_ids["t"]
        for number in range(20):
            await cluster.nodes[2].write("t", f"v{number}")
        await after(2 * STEP_MS)
        own = {
            id_: node.history.stored_bytes_here(topic_id, 0) for id_, node in cluster.nodes.items()
        }
        assert own[1] == own[2] > 0
        assert own[3] is None
        for node in cluster.nodes.values():
            told = await node.history.stored_bytes([topic_id, "no-such-topic"])
            assert (told.sizes, told.silent_nodes) == ({topic_id: own[1] + own[2]}, [])
            by_partition = await node.history.stored_bytes([topic_id], by_partition=True)
            assert by_partition.sizes == {"0": own[1] + own[2]}
            assert (
                await node.history.stored_bytes(["no-such-topic"], by_partition=True)
            ).sizes == {}
        await cluster.kill(2)
        told = await cluster.nodes[3].history.stored_bytes([topic_id])
        assert (told.sizes, told.silent_nodes) == ({topic_id: own[1]}, [2])


@virtual
async def test_a_node_that_is_gone_is_named_and_its_part_is_missing() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1, 3))
        await after(STEP_MS)
        await cluster.kill(2)
        view = await cluster.nodes[1].history.of_topic("t")
        assert view.silent_nodes == [2]
        assert view.versions == {1: MILENA_VERSION, 3: MILENA_VERSION}
        assert {one.node_id for one in (await cluster.nodes[1].history.of_nodes()).series} == {1, 3}


class EarlyClock:
    """A clock whose timers go off a millisecond before their time, as those of event loops may."""

    def __init__(self, real: Clock) -> None:
        self._real = real
        self.now_ms, self.wall_ms = real.now_ms, real.wall_ms

    async def sleep(self, ms: float) -> None:
        await self._real.sleep(max(0.5, ms - 1))


@virtual
async def test_a_timer_that_goes_off_early_loses_nothing() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1, 3))
        leader = cluster.nodes[2]
        context: NodeContext = leader.history.node
        leader.history.node = replace(context, clock=EarlyClock(leader.clock))
        for number in range(5):
            await after(STEP_MS)
            await leader.write("t", f"v{number}")
        await after(STEP_MS)
        (column,) = [
            one.values
            for one in (await leader.history.of_topic("t")).series
            if one.name == "records_in_per_second"
        ]
        assert list(column[-5:]) == pytest.approx([0.1] * 5, rel=0.05)


def told(end_slot: int, *newest: float) -> HistoryAnswer:
    """What a node tells of a lag: ``newest`` last, nothing before."""
    values = [math.nan] * (POINTS - len(newest)) + list(newest)
    packed = Blob(struct.pack(f"<{POINTS}f", *values))
    return HistoryAnswer(end_slot=end_slot, names=("lag",), values=packed, busiest=(), left_out=0)


@pytest.mark.parametrize(
    ("answers", "end_slot", "newest"),
    [
        ([told(7, 1, 2, 3), told(7, 10, 20, 30)], 7, [11, 22, 33]),
        # One has looked at the new slot, the other is about to.
        ([told(8, 1, 2, 0), told(7, 10, 20)], 7, [11, 22]),
        ([told(7, 10, 20), told(8, 1, 2, 0)], 7, [11, 22]),
        # One stood still for a while, and the others go on without it.
        ([told(9, 1, 2, 3), told(7, 10)], 9, [11, 2, 3]),
        ([told(9, 5), told(8, 5, 6), told(5, 9)], 8, [5, 6]),
        ([told(0, 4)], 0, [4]),
        # One did not look for a moment: what it led is not nothing. Before it was started, it led nothing.
        ([told(8, 1, 2, 3), told(8, 10, math.nan, 30)], 8, [11, math.nan, 33]),
        ([told(8, 1, math.nan, 3), told(8, 30)], 8, [1, math.nan, 33]),
    ],
)
def test_a_sum_ends_where_all_have_looked(answers, end_slot, newest):
    ends, sums = summed(answers)
    assert ends == end_slot
    assert list(sums["lag"])[-len(newest) :] == pytest.approx(newest, nan_ok=True)
    assert len(sums["lag"]) == POINTS


@virtual
async def test_a_groups_lag_is_known_without_asking_anybody() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1, 3))
        for number in range(7):
            await cluster.nodes[1].write("t", f"v{number}")
        await cluster.nodes[1].groups.service.commit(
            "g", [OffsetToCommit(topic="t", partition=0, offset=3)]
        )
        await after(STEP_MS)
        assert last(await cluster.nodes[3].history.of_group("g"), "lag") == 4
        assert last(await cluster.nodes[3].history.of_group("other"), "lag") == 0
        told = {
            (node_id, sample.group, sample.lag)
            for node_id, node in cluster.nodes.items()
            for sample in node.history.groups_here()
        }
        assert told == {(2, "g", 4)}


@virtual
async def test_a_lag_is_not_known_where_a_leader_keeps_its_part_to_itself() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1,))
        await cluster.create("u", (3,))
        for topic in ("t", "u"):
            await cluster.nodes[2].write(topic, "v")
        for group, topics in (("both", "tu"), ("one", "t")):
            await cluster.nodes[1].groups.service.commit(
                group, [OffsetToCommit(topic=topic, partition=0, offset=0) for topic in topics]
            )
        await after(STEP_MS)
        assert last(await cluster.nodes[1].history.of_group("both"), "lag") == 2
        await cluster.kill(3)
        both = await cluster.nodes[1].history.of_group("both")
        assert both.silent_nodes == [3]
        assert all(math.isnan(value) for value in both.series[0].values)
        assert last(await cluster.nodes[1].history.of_group("one"), "lag") == 1


@virtual
async def test_a_lag_that_is_not_known_of_one_partition_is_not_known_of_the_group() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1, 3))
        await cluster.create("u", (3, 1, 2))
        for topic in ("t", "u"):
            await cluster.nodes[1].write(topic, "v")
        await cluster.nodes[1].groups.service.commit(
            "g",
            [
                OffsetToCommit(topic="t", partition=0, offset=0),
                OffsetToCommit(topic="u", partition=0, offset=9),
            ],
        )
        await after(STEP_MS)
        assert last(await cluster.nodes[1].history.of_group("g"), "lag") == math.inf


def age_s(node: SimNode, group: str) -> float | None:
    (found,) = [one for one in node.history.groups_here() if one.group == group]
    return None if found.lag_ms is None else found.lag_ms / 1000


async def commit(cluster: Cluster, group: str, offset: int) -> None:
    await cluster.nodes[1].groups.service.commit(
        group, [OffsetToCommit(topic="t", partition=0, offset=offset)]
    )


@virtual
async def test_the_age_of_the_first_unread_record_is_known_within_a_step() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1, 3))
        for number in range(12):
            await cluster.nodes[1].write("t", f"v{number}")
            if not number:
                await commit(cluster, "late", 6)
                await commit(cluster, "done", 12)
            await after(5 * STEP_MS)
        assert age_s(cluster.nodes[2], "done") == 0
        # Record 6 was written six pauses ago.
        assert age_s(cluster.nodes[2], "late") == pytest.approx(300, abs=2 * STEP_MS / 1000)
        await after(STEP_MS)
        assert age_s(cluster.nodes[2], "late") == pytest.approx(310, abs=2 * STEP_MS / 1000)


@virtual
async def test_a_record_that_is_older_than_the_notes_tells_its_own_date() -> None:
    """So it does after a change of leader, and for a group that commits for the first time."""
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1, 3))
        for number in range(5):
            await cluster.nodes[1].write("t", f"v{number}")
            await after(60_000)
        await commit(cluster, "g", 1)
        await after(STEP_MS)
        # One of its own offsets is below the notes, and its record was written four minutes ago.
        assert age_s(cluster.nodes[2], "g") == pytest.approx(240, abs=15)
        await cluster.kill(2)
        await cluster.until(lambda: cluster.leader_of("t") not in (None, 2))
        await after(2 * STEP_MS)
        leader = cluster.leader_of("t")
        assert leader is not None
        assert age_s(cluster.nodes[leader], "g") == pytest.approx(270, abs=30)


@virtual
async def test_a_record_is_read_once_for_its_date_while_a_group_stands_there() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1, 3))
        for number in range(3):
            await cluster.nodes[1].write("t", f"v{number}")
        await after(2 * STEP_MS)
        for group in ("a", "b"):
            await commit(cluster, group, 1)
        history = cluster.nodes[2].history
        read, asked = history.appended_ms, []

        async def counted(runner: PartitionRunner, offset: int) -> int | None:
            asked.append(offset)
            return await read(runner, offset)

        history.appended_ms = counted
        await after(5 * STEP_MS)
        assert asked == [1]
        await commit(cluster, "a", 2)
        await after(5 * STEP_MS)
        assert asked == [1, 2]


@virtual
async def test_slow_reads_of_dates_delay_no_sample_and_are_all_done_in_the_end() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1, 3))
        for number in range(4):
            await cluster.nodes[1].write("t", f"v{number}")
        await after(2 * STEP_MS)
        history = cluster.nodes[2].history
        read = history.appended_ms

        async def slow(runner: PartitionRunner, offset: int) -> int | None:
            await after(DATES_MS_MAX - 1)
            return await read(runner, offset)

        history.appended_ms = slow
        for number in range(4):
            await commit(cluster, f"g{number}", number)
        known = set()
        for _ in range(3 * STEP_MS // 1_000):
            await after(1_000)
            known.add(sum(one.lag_ms is not None for one in history.groups_here()))
        assert known == {0, 2, 4}
        assert not math.isnan(last(await history.of_nodes(), "stored_bytes", 2))


@virtual
async def test_an_age_is_not_known_where_the_lag_is_not_or_the_record_cannot_be_read() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1, 3))
        await cluster.nodes[1].write("t", "a")
        await after(STEP_MS)
        await commit(cluster, "behind-the-end", 9)
        await commit(cluster, "unreadable", 0)
        runner = cluster.runner(2, "t")

        def damaged(offset: int, *, max_bytes: int, end_offset: int) -> bytes:
            raise CorruptLogError("damaged")

        # The last record is known already.
        await cluster.nodes[2].reads.records_end(runner)
        runner.read_cached = damaged
        await after(STEP_MS)
        assert age_s(cluster.nodes[2], "behind-the-end") is None
        assert age_s(cluster.nodes[2], "unreadable") is None
        lags = {one.group: one.lag for one in cluster.nodes[2].history.groups_here()}
        assert lags == {"behind-the-end": None, "unreadable": 1}
        del runner.read_cached
