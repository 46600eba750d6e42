"""Moving replicas between whole nodes: nothing is lost, nobody waits for long, and what is left behind goes."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from http_api.ports.node import (
    MoveState,
    PlannedReassignment,
    ReassignmentRequest,
    ReplicaTarget,
    RunningReassignment,
)
from milena.model.errors import (
    BrokerNotFoundError,
    FateUnknownError,
    InvalidReplicationError,
    MilenaError,
    NotEnoughReplicasError,
    PartitionNotFoundError,
    StaleVersionError,
    TopicNotFoundError,
)
from raft_meta.machine.image import Partition
from tests.support.clusters.nodes import ROOT, Cluster, cluster_of, outcome
from tests.support.time.virtual_time import after, virtual

FIVE = (1, 2, 3, 4, 5)


def state_of(cluster: Cluster, topic: str = "t", partition: int = 0) -> Partition:
    found = cluster.image.topic(topic)
    assert found is not None
    return cluster.image.partitions[found.topic_id, partition]


def has_arrived(cluster: Cluster, *replicas: int, partition: int = 0) -> Callable[[], bool]:
    def is_there() -> bool:
        state = state_of(cluster, partition=partition)
        return state.moving is None and state.replicas == replicas == state.isr

    return is_there


def files_of(cluster: Cluster, node_id: int) -> list[str]:
    """What a node has on its disk of any replica."""
    topics = f"{ROOT}/topics/"
    return [path for path in cluster.files[node_id].paths() if path.startswith(topics)]


async def move(
    cluster: Cluster, *replicas: int, partition: int = 0, **options: int
) -> list[PlannedReassignment]:
    target = ReplicaTarget(topic="t", partition=partition, replicas=replicas)
    request = ReassignmentRequest(partitions=(target,), **options)  # type: ignore[arg-type]
    return list(await cluster.any.reassignments.reassign(request))


async def running(cluster: Cluster, node_id: int) -> list[RunningReassignment]:
    return list(await cluster.nodes[node_id].reassignments.running())


async def catching_up(cluster: Cluster) -> None:
    await cluster.until(
        lambda: (moving := state_of(cluster).moving) is not None and moving.is_started
    )
    await after(50)


class Writers:
    """Write through every node in turn until they are stopped; keep what came of it."""

    def __init__(self, cluster: Cluster, count: int = 4) -> None:
        self.cluster = cluster
        self.acknowledged: dict[int, str] = {}
        self.errors: list[MilenaError] = []
        self.gap_ms_max = 0
        self._last_ms = cluster.any.clock.now_ms()
        self._is_over = False
        self._tasks = [asyncio.ensure_future(self._write(n)) for n in range(count)]

    async def _write(self, number: int) -> None:
        turn = 0
        while not self._is_over:
            turn += 1
            nodes = sorted(self.cluster.nodes)
            node = self.cluster.nodes[nodes[(number + turn) % len(nodes)]]
            value = f"w{number}-{turn}"
            result = await outcome(node.write("t", value))
            if isinstance(result, MilenaError):
                self.errors.append(result)
            else:
                [offset] = result
                assert offset is not None
                assert offset not in self.acknowledged
                self.acknowledged[offset] = value
                now_ms = node.clock.now_ms()
                self.gap_ms_max = max(self.gap_ms_max, now_ms - self._last_ms)
                self._last_ms = now_ms
            await after(5)

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)


class TestMoves:
    @virtual
    async def test_a_partition_moves_under_writers_who_hardly_notice(self) -> None:
        cluster = Cluster(FIVE, network_ms=lambda rng: 1.0, disk_delay_ms=lambda rng: 2.0)
        async with cluster_of(cluster):
            await cluster.create("t", (1, 2, 3))
            writers = Writers(cluster)
            await after(500)
            await move(cluster, 3, 4, 5)
            await cluster.until(has_arrived(cluster, 3, 4, 5))
            await after(1_000)
            await writers.stop()
            # Followers hear a moment later that the last records are committed.
            await after(20)
            # What is on its way at the change of leader may be cut off, as with every such change.
            assert len(writers.errors) <= 4
            assert all(isinstance(error, FateUnknownError) for error in writers.errors)
            assert writers.gap_ms_max < 250
            for node_id in (3, 4, 5):
                values = await cluster.nodes[node_id].read("t", is_local=True)
                assert len(values) == len({*values})
                assert {*enumerate(values)} >= {*writers.acknowledged.items()}
                assert len(values) <= len(writers.acknowledged) + len(writers.errors)
            assert files_of(cluster, 1) == files_of(cluster, 2) == []

    @virtual
    async def test_the_leader_may_stay_and_others_change_around_it(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3))
            writers = Writers(cluster)
            await after(100)
            await move(cluster, 1, 4, 5)
            await cluster.until(has_arrived(cluster, 1, 4, 5))
            await after(100)
            await writers.stop()
            assert writers.errors == []
            assert await cluster.nodes[4].read("t", is_local=True) == [
                value for _, value in sorted(writers.acknowledged.items())
            ]

    @virtual
    async def test_a_broker_that_was_dead_when_it_lost_its_replicas_cleans_up(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.nodes[1].write("t", "a")
            await cluster.kill(1)
            await cluster.until(lambda: cluster.leader_of("t") == 2)
            await move(cluster, 3, 4, 5)
            await cluster.until(has_arrived(cluster, 3, 4, 5))
            assert files_of(cluster, 1)
            await cluster.restart(1)
            await cluster.until(lambda: cluster.nodes[1].membership.is_unfenced)
            await after(100)
            assert files_of(cluster, 1) == []
            assert await cluster.nodes[1].read("t") == ["a"]

    @virtual
    async def test_a_replica_that_comes_back_empty_does_not_count_with_what_it_once_had(
        self,
    ) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.nodes[1].write("t", "a", "b")
            await move(cluster, 1, 2, 4)
            await cluster.until(has_arrived(cluster, 1, 2, 4))
            await after(100)
            assert files_of(cluster, 3) == []
            cluster.network.cut(3, 1)
            await move(cluster, 1, 2, 3)
            await after(1_000)
            assert 3 not in cluster.isr_of("t")
            cluster.heal()
            await cluster.until(has_arrived(cluster, 1, 2, 3))
            assert await cluster.nodes[3].read("t", is_local=True) == ["a", "b"]

    @virtual
    async def test_deleting_the_topic_ends_the_move(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3))
            for value in "abc":
                await cluster.nodes[1].write("t", value)
            await move(cluster, 1, 2, 4, throttle_bytes_per_s=1)
            await catching_up(cluster)
            assert files_of(cluster, 4)
            await cluster.any.admin.delete_topic("t")
            await after(500)
            assert await running(cluster, 5) == []
            assert all(files_of(cluster, node_id) == [] for node_id in FIVE)

    @virtual
    async def test_a_few_at_a_time(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2), (1, 2), (1, 2))
            seen: set[tuple[MoveState, ...]] = set()
            targets = tuple(
                ReplicaTarget(topic="t", partition=number, replicas=(3, 4)) for number in range(3)
            )
            request = ReassignmentRequest(partitions=targets, max_concurrent=1)
            await cluster.nodes[5].reassignments.reassign(request)
            while moves := await running(cluster, 5):
                seen.add(tuple(row.state for row in moves))
                await after(1)
            assert all(sum(s is not MoveState.WAITING for s in states) <= 1 for states in seen)
            assert any(states.count(MoveState.WAITING) == 1 < len(states) for states in seen)


class TestThrottle:
    VALUE = "x" * 1_000

    async def _fill(self, cluster: Cluster) -> None:
        for _ in range(200):
            await cluster.nodes[1].write("t", self.VALUE)

    async def _time_to_move(self, cluster: Cluster, **options: int) -> int:
        began = cluster.any.clock.now_ms()
        await move(cluster, 1, 2, 4, **options)
        await cluster.until(has_arrived(cluster, 1, 2, 4), 60_000)
        return cluster.any.clock.now_ms() - began

    @virtual
    async def test_it_holds_back_the_new_replica_and_nobody_else(self) -> None:
        cluster = Cluster(FIVE, network_ms=lambda rng: 1.0)
        async with cluster_of(cluster):
            await cluster.create("t", (1, 2, 3))
            await self._fill(cluster)
            slow = asyncio.ensure_future(self._time_to_move(cluster, throttle_bytes_per_s=50_000))
            await after(500)
            writers = Writers(cluster, 1)
            await after(1_000)
            await writers.stop()
            assert writers.errors == []
            assert writers.gap_ms_max < 20
            # 200 KB and what was written meanwhile, less the burst, at 50 KB/s.
            assert 3_500 < await slow < 6_000

    @virtual
    async def test_the_nodes_own_bound_is_for_moves_without_one(self) -> None:
        cluster = Cluster(FIVE, throttle_bytes_per_s=50_000)
        async with cluster_of(cluster):
            await cluster.create("t", (1, 2, 3))
            await self._fill(cluster)
            assert await self._time_to_move(cluster, throttle_bytes_per_s=10**9) < 1_000
            await cluster.until(has_arrived(cluster, 1, 2, 4))
            began = cluster.any.clock.now_ms()
            await move(cluster, 1, 2, 3)
            await cluster.until(has_arrived(cluster, 1, 2, 3), 60_000)
            assert cluster.any.clock.now_ms() - began > 3_000

    @virtual
    async def test_progress_is_known_on_every_node(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3))
            await self._fill(cluster)
            await move(cluster, 1, 2, 4, throttle_bytes_per_s=50_000)
            await after(1_500)
            found = [await running(cluster, node_id) for node_id in FIVE]
            assert all(rows == found[0] for rows in found)
            [[row], *_] = found
            assert (row.topic, row.partition, row.state) == ("t", 0, MoveState.CATCHING_UP)
            assert (row.former, row.target, row.leader) == ((1, 2, 3), (1, 2, 4), 1)
            [added] = row.added
            assert added.broker_id == 4
            assert not added.is_in_sync
            assert added.offsets_left is not None
            assert 50 < added.offsets_left < 180
            assert added.bytes_left is not None
            assert 50_000 < added.bytes_left < 200_000
            cluster.network.cut(1, 5)
            [row] = await running(cluster, 5)
            assert row.added[0].bytes_left is None


class TestFaults:
    @pytest.mark.parametrize("victim", FIVE)
    @virtual
    async def test_any_node_may_die_on_the_way(self, victim: int) -> None:
        cluster = Cluster(FIVE, network_ms=lambda rng: 1.0)
        async with cluster_of(cluster):
            await cluster.create("t", (1, 2, 3))
            for number in range(20):
                await cluster.nodes[1].write("t", f"v{number}" * 100)
            await move(cluster, 3, 4, 5, throttle_bytes_per_s=10_000)
            await after(300)
            await cluster.kill(victim)
            await after(1_000)
            await cluster.restart(victim)
            await cluster.until(has_arrived(cluster, 3, 4, 5), 60_000)
            await after(200)
            for node_id in (3, 4, 5):
                values = await cluster.nodes[node_id].read("t", is_local=True)
                assert values == [f"v{number}" * 100 for number in range(20)]
            assert files_of(cluster, 1) == files_of(cluster, 2) == []

    @virtual
    async def test_a_new_controller_goes_on(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3))
            for value in "abc":
                await cluster.nodes[1].write("t", value)
            await move(cluster, 3, 4, 5, throttle_bytes_per_s=1)
            await catching_up(cluster)
            cluster.log.elect(5 if cluster.log.leader_id != 5 else 2)
            # Asked for again, it goes on with other bounds.
            await move(cluster, 3, 4, 5)
            await cluster.until(has_arrived(cluster, 3, 4, 5))
            assert await cluster.nodes[1].read("t") == [*"abc"]


class TestRequests:
    @virtual
    async def test_a_dry_run_changes_nothing(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3), (1, 2, 3))
            before = cluster.image.partitions
            request = ReassignmentRequest(drain=1, is_dry_run=True)
            rows = await cluster.nodes[5].reassignments.reassign(request)
            assert [(row.before, 1 in row.after) for row in rows] == [((1, 2, 3), False)] * 2
            assert cluster.image.partitions == before

    @virtual
    async def test_a_drained_broker_holds_nothing(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3), (3, 1, 2), (1, 4, 5))
            await cluster.nodes[2].reassignments.reassign(ReassignmentRequest(drain=1))
            await cluster.until(
                lambda: not any(part.names(1) for part in cluster.image.partitions.values())
            )
            await after(100)
            assert files_of(cluster, 1) == []

    @virtual
    async def test_a_node_that_was_added_gets_its_share(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", *((1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2, 3), (2, 3, 1)))
            await cluster.nodes[4].reassignments.reassign(ReassignmentRequest())
            await cluster.until(
                lambda: all(p.moving is None for p in cluster.image.partitions.values())
            )
            held = [sum(p.names(b) for p in cluster.image.partitions.values()) for b in FIVE]
            assert held == [3] * 5

    @virtual
    async def test_what_cannot_be_is_refused_before_anything_moves(self) -> None:
        def request(topic: str, partition: int, *replicas: int) -> ReassignmentRequest:
            target = ReplicaTarget(topic=topic, partition=partition, replicas=replicas)
            return ReassignmentRequest(partitions=(target,))

        def twice() -> ReassignmentRequest:
            one = request("t", 0, 1, 2, 4).partitions
            return ReassignmentRequest(partitions=(*one, *one))

        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3))
            for wrong, kind in (
                (request("u", 0, 1), TopicNotFoundError),
                (request("t", 1, 1), PartitionNotFoundError),
                (request("t", 0, 1, 1), InvalidReplicationError),
                (request("t", 0, 1, 9), InvalidReplicationError),
                (request("t", 0, 1), InvalidReplicationError),
                (twice(), InvalidReplicationError),
                (ReassignmentRequest(drain=9), BrokerNotFoundError),
            ):
                with pytest.raises(kind):
                    await cluster.any.reassignments.reassign(wrong)
            assert state_of(cluster).moving is None

    @virtual
    async def test_each_partition_may_be_refused_by_itself(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3), (1, 2, 3), (1, 2, 3))
            wishes: list[tuple[str, int, tuple[int, ...] | None]] = [
                ("u", 0, (1, 2, 3)),
                ("t", 0, (4, 5, 1)),
                ("t", 9, (4, 5, 1)),
                ("t", 0, (1, 2, 3)),
                ("t", 1, (1, 9, 3)),
                ("t", 2, None),
            ]
            request = ReassignmentRequest(
                partitions=tuple(
                    ReplicaTarget(topic=t, partition=p, replicas=r) for t, p, r in wishes
                ),
                is_each_alone=True,
            )
            rows = await cluster.any.reassignments.reassign(request)
            assert [(row.topic, row.partition) for row in rows] == [(t, p) for t, p, _ in wishes]
            assert [None if row.error is None else type(row.error) for row in rows] == [
                TopicNotFoundError,
                None,
                PartitionNotFoundError,
                InvalidReplicationError,
                InvalidReplicationError,
                StaleVersionError,
            ]
            await cluster.until(has_arrived(cluster, 4, 5, 1))

    @virtual
    async def test_a_request_of_which_nothing_is_possible_has_its_errors_in_rows(self) -> None:
        async with cluster_of() as cluster:
            target = ReplicaTarget(topic="u", partition=0, replicas=(1,))
            request = ReassignmentRequest(partitions=(target,), is_each_alone=True)
            (row,) = await cluster.any.reassignments.reassign(request)
            assert (row.topic_id, type(row.error)) == ("", TopicNotFoundError)


class TestCancelling:
    async def _stuck(self, cluster: Cluster) -> None:
        """A move to 3-5 that cannot end: 5 does not reach the leader."""
        await cluster.create("t", (1, 2, 3), (1, 2, 3), (1, 2, 3))
        await cluster.nodes[1].write("t", "a")
        cluster.network.cut(5, 1)
        await move(cluster, 3, 4, 5)
        await cluster.until(lambda: 4 in cluster.isr_of("t"))

    @virtual
    async def test_the_partition_is_where_it_was_and_the_new_replicas_go(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await self._stuck(cluster)
            [row] = await cluster.nodes[3].reassignments.cancel("t", 0)
            assert (row.is_cancelled, row.error, row.after) == (True, None, (1, 2, 3))
            assert has_arrived(cluster, 1, 2, 3)()
            cluster.heal()
            await after(500)
            assert files_of(cluster, 4) == files_of(cluster, 5) == []
            assert isinstance(await outcome(cluster.nodes[4].write("t", "b")), list)

    @virtual
    async def test_a_request_may_cancel_and_move(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await self._stuck(cluster)
            targets = (
                ReplicaTarget(topic="t", partition=0, replicas=None),
                ReplicaTarget(topic="t", partition=1, replicas=(1, 2, 4)),
            )
            request = ReassignmentRequest(partitions=targets)
            rows = await cluster.nodes[3].reassignments.reassign(request)
            assert [(row.is_cancelled, row.error) for row in rows] == [(True, None), (False, None)]
            await cluster.until(has_arrived(cluster, 1, 2, 4, partition=1))
            assert has_arrived(cluster, 1, 2, 3)()

    @virtual
    async def test_nothing_to_cancel(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3))
            service = cluster.any.reassignments
            assert await service.cancel(None, None) == await service.cancel("t", None) == []
            target = ReplicaTarget(topic="t", partition=0, replicas=None)
            for work, kind in (
                (lambda: service.cancel("u", None), TopicNotFoundError),
                (lambda: service.cancel("t", 7), PartitionNotFoundError),
                (
                    lambda: service.reassign(ReassignmentRequest(partitions=(target,))),
                    StaleVersionError,
                ),
            ):
                with pytest.raises(kind):
                    await _awaited(work)

    @virtual
    async def test_those_in_sync_are_not_given_up(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2), min_insync_replicas="2")
            await cluster.nodes[1].write("t", "a")
            await cluster.kill(5)
            await move(cluster, 3, 5)
            await cluster.until(lambda: 3 in cluster.isr_of("t"))
            await cluster.kill(1)
            await cluster.until(lambda: set(cluster.isr_of("t")) == {2, 3})
            with pytest.raises(NotEnoughReplicasError):
                await cluster.any.reassignments.cancel(None, None)
            await cluster.restart(5)
            await cluster.until(has_arrived(cluster, 3, 5))
            assert await cluster.nodes[2].read("t") == ["a"]


async def _awaited(work: Callable[[], Awaitable[object]]) -> object:
    return await work()
