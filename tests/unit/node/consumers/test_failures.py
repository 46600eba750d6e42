"""Rules of REST consumers where something fails: answers get lost, leaders, disks and coordinators go away."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from immutables import Map

from http_api.ports.groups import Seek
from milena.model.errors import (
    FateUnknownError,
    InvalidConsumerError,
    MalformedRequestError,
    MilenaError,
    NoLeaderError,
    ReplicaDamagedError,
    TooManyRequestsError,
)
from node.consumers.consumer_service import PARTITIONS_MAX
from node.consumers.consumer_sessions import CALLS_PER_CONSUMER_MAX
from storage.segments.segment import LOG_SUFFIX
from tests.support.clusters.compacted_cluster import CONFIGS, compact, update
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.groups.sim_consumers import GROUP, Client, wanted
from tests.support.time.virtual_time import after, virtual


def other_than(cluster: Cluster, *node_ids: int | None) -> int:
    return next(node_id for node_id in cluster.nodes if node_id not in node_ids)


class TestLostAnswers:
    @virtual
    async def test_a_records_call_is_repeated_and_skips_nothing(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b")
            client = await (await Client(cluster).create()).subscribe("t")
            asked = other_than(cluster, client.coordinator)
            cluster.network.lose_answers_to.add((asked, "consumer_records"))
            reading = asyncio.create_task(client.read(asked, timeout_ms=30_000, max_bytes=1))
            await after(1_000)
            cluster.network.lose_answers_to.clear()
            cluster.nodes[asked].peer.disconnect(client.coordinator)
            assert await reading == ["a"]
            assert await client.read(asked) == ["b"]

    @virtual
    @pytest.mark.parametrize("is_given_up", [False, True])
    @pytest.mark.parametrize("is_committed", [False, True])
    async def test_what_a_call_of_unknown_fate_took_is_delivered_by_the_next(
        self, is_given_up: bool, is_committed: bool
    ) -> None:
        """Whether the client got an error, or has disconnected while the coordinator could not be told."""
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b")
            client = await (await Client(cluster).create()).subscribe("t")
            asked = other_than(cluster, client.coordinator)
            cluster.network.lose_answers_to.add((asked, "consumer_records"))
            reading = asyncio.create_task(client.read(asked, max_bytes=1))
            await after(100)
            if is_given_up:
                cluster.network.cut(asked, client.coordinator)
                reading.cancel()
            with pytest.raises((FateUnknownError, asyncio.CancelledError)):
                await reading
            await after(500)
            cluster.network.lose_answers_to.clear()
            cluster.heal()
            if is_committed:
                await client.commit(node_id=asked)
                assert (await client.committed()).get(0, 0) == 0
            assert await client.read(asked, max_bytes=1) == ["a"]
            assert await client.read(asked, max_bytes=1) == ["b"]

    @virtual
    async def test_a_drawn_name_is_created_once(self) -> None:
        async with cluster_of() as cluster:
            asked = other_than(cluster, Client(cluster).coordinator)
            cluster.network.lose_answers_to.add((asked, "consumer_create"))
            creating = asyncio.create_task(
                cluster.nodes[asked].consumers.service.create(GROUP, wanted(None))
            )
            await after(100)
            cluster.network.lose_answers_to.clear()
            cluster.nodes[asked].peer.disconnect(Client(cluster).coordinator)
            assert [(GROUP, await creating)] == list(cluster.image.consumers)

    @virtual
    async def test_what_ended_with_a_node_on_its_way_is_given_again(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b")
            client = await Client(cluster).create(is_auto_commit=True)
            await client.subscribe("t")
            asked = other_than(cluster, client.coordinator)
            cluster.network.lose_answers_to.add((asked, "consumer_records"))
            reading = asyncio.create_task(client.read(asked, max_bytes=1))
            await after(100)
            await cluster.kill(asked)
            reading.cancel()
            assert await client.read(max_bytes=1) == ["a"]
            assert await client.read(max_bytes=1) == ["b"]

    @virtual
    @pytest.mark.parametrize("is_committed", [False, True])
    async def test_what_ended_with_a_node_is_given_again_by_the_same_node_when_it_is_back(
        self, is_committed: bool
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b")
            client = await (await Client(cluster).create()).subscribe("t")
            asked = other_than(cluster, client.coordinator, cluster.image.controller_id)
            # The response has reached the node, which ends before its client has it.
            assert await client.read(asked, max_bytes=1) == ["a"]
            await cluster.kill(asked)
            membership = (await cluster.restart(asked)).membership
            await cluster.until(lambda: membership.is_unfenced and membership.has_lease)
            if is_committed:
                await client.commit(node_id=asked)
                assert (await client.committed()).get(0, 0) == 0
            assert await client.read(asked, max_bytes=1) == ["a"]
            assert await client.read(asked, max_bytes=1) == ["b"]

    @virtual
    async def test_what_did_not_arrive_is_not_committed(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b")
            client = await (await Client(cluster).create()).subscribe("t")
            asked = other_than(cluster, client.coordinator)
            assert await client.read(asked, max_bytes=1) == ["a"]
            cluster.network.lose_answers_to.add((asked, "consumer_records"))
            reading = asyncio.create_task(client.read(asked, max_bytes=1))
            await after(100)
            await cluster.kill(asked)
            reading.cancel()
            await client.commit()
            assert await client.committed() == {0: 1}

    @virtual
    async def test_a_commit_of_what_was_delivered_is_not_known_to_be_done(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a")
            client = await (await Client(cluster).create()).subscribe("t")
            await client.read()
            asked = other_than(cluster, client.coordinator)
            cluster.network.lose_answers_to.add((asked, "consumer_commit"))
            with pytest.raises(FateUnknownError):
                await client.commit(node_id=asked)


def rot(cluster: Cluster, node_id: int, partition: int = 0) -> Callable[[], None]:
    """Flip a bit of the payload of the second batch in a copy of ``t``; flips it back when it is called."""
    log = cluster.runner(node_id, "t", partition).log
    (path,) = (
        path
        for path in cluster.files[node_id].paths()
        if path.startswith(log.replica.directory) and path.endswith(LOG_SUFFIX)
    )
    position = len(log.read_span(0, max_bytes=1)) + 80
    cluster.files[node_id].flip_bit(path, position)
    return lambda: cluster.files[node_id].flip_bit(path, position)


class TestDamage:
    @virtual
    async def test_damaged_records_are_an_error_and_are_not_passed_over(self) -> None:
        async with cluster_of() as cluster:
            client = Client(cluster)
            leader = other_than(cluster, client.coordinator)
            await cluster.create("t", (leader,))
            for value in "abc":
                await cluster.nodes[leader].write("t", value)
            doubts: list[int | None] = []
            scrubber = cluster.nodes[leader].scrubber
            scrubber.doubt = lambda _, offset: doubts.append(offset)  # type: ignore[method-assign]
            mend = rot(cluster, leader)
            await (await client.create(is_auto_commit=True)).subscribe("t")
            assert await client.read() == ["a"]
            assert doubts == [1], "whose copy it is has heard of it"
            for _ in range(3):
                with pytest.raises(ReplicaDamagedError, match="t-0: the records at offset 1"):
                    await client.read(timeout_ms=6_000)
            assert await client.committed() == {0: 1}
            mend()
            assert await client.read() == ["b", "c"]

    @virtual
    async def test_a_call_that_waits_goes_on_once_they_are_mended(self) -> None:
        async with cluster_of() as cluster:
            client = Client(cluster)
            await cluster.create("t", (client.coordinator,))
            for value in "abc":
                await cluster.any.write("t", value)
            mend = rot(cluster, client.coordinator)
            await (await client.create()).subscribe("t")
            assert await client.read() == ["a"]
            reading = asyncio.create_task(client.read(timeout_ms=30_000))
            await after(3_000)
            assert not reading.done()
            mend()
            assert await reading == ["b", "c"]

    @virtual
    async def test_damage_in_one_partition_does_not_stop_the_others(self) -> None:
        async with cluster_of() as cluster:
            client = Client(cluster)
            leader = client.coordinator
            await cluster.create("t", (leader,), (leader,))
            for value in "abc":
                await cluster.any.write("t", value, partition=0)
            mend = rot(cluster, leader)
            await (await client.create()).subscribe("t")
            assert await client.read() == ["a"]
            for value in "xyz":
                await cluster.any.write("t", value, partition=1)
                assert await client.read() == [value]
            with pytest.raises(ReplicaDamagedError):
                await client.read()
            mend()
            assert await client.read() == ["b", "c"]


class TestLeaders:
    @virtual
    async def test_a_partition_without_a_leader_does_not_stop_the_others(self) -> None:
        async with cluster_of() as cluster:
            coordinator = Client(cluster).coordinator
            lost = other_than(cluster, coordinator)
            kept = other_than(cluster, coordinator, lost)
            await cluster.create("t", (lost,), (kept,))
            await cluster.nodes[lost].write("t", "lost", partition=0)
            client = await (await Client(cluster).create()).subscribe("t")
            await cluster.kill(lost)
            await after(5_000)
            reading = asyncio.create_task(client.read(coordinator, timeout_ms=60_000))
            await after(1_000)
            await cluster.nodes[kept].write("t", "kept", partition=1)
            assert await reading == ["kept"]
            reading = asyncio.create_task(client.read(coordinator, timeout_ms=60_000))
            await after(1_000)
            await cluster.restart(lost)
            assert await reading == ["lost"]

    @virtual
    async def test_what_has_no_leader_is_not_asked_for_all_the_time(self) -> None:
        async with cluster_of() as cluster:
            coordinator = Client(cluster).coordinator
            lost = other_than(cluster, coordinator)
            await cluster.create("t", (lost,))
            client = await (await Client(cluster).create()).subscribe("t")
            await cluster.kill(lost)
            await after(5_000)
            cluster.network.calls.clear()
            with pytest.raises(NoLeaderError, match="t-0 cannot be read now"):
                await client.read(coordinator, timeout_ms=60_000)
            assert sum(kind in ("read", "tail") for *_, kind, _ in cluster.network.calls) < 40

    @virtual
    @pytest.mark.parametrize("timeout_ms", [0, 100, 1_500, 20_000])
    @pytest.mark.parametrize("has_waited", [False, True])
    async def test_no_answer_says_that_there_is_nothing_where_that_is_not_known(
        self, timeout_ms: int, has_waited: bool
    ) -> None:
        async with cluster_of() as cluster:
            coordinator = Client(cluster).coordinator
            lost = other_than(cluster, coordinator)
            kept = other_than(cluster, coordinator, lost)
            await cluster.create("t", (lost,), (kept,))
            client = await (await Client(cluster).create()).subscribe("t")
            if has_waited:
                # A question to the leader goes on, which others that wait shall share.
                assert await client.read(coordinator, timeout_ms=1_000) == []
            await cluster.nodes[lost].write("t", "lost", partition=0)
            cluster.isolate(lost)
            with pytest.raises(NoLeaderError):
                await client.read(coordinator, timeout_ms=timeout_ms)
            await cluster.nodes[kept].write("t", "kept", partition=1)
            assert await client.read(coordinator, timeout_ms=5_000) == ["kept"]
            cluster.heal()
            assert await client.read(coordinator, timeout_ms=20_000) == ["lost"]
            assert await client.read(coordinator, timeout_ms=20_000) == []

    @virtual
    @pytest.mark.parametrize("timeout_ms", [0, 1_000])
    async def test_records_come_in_the_call_that_leaves_a_position_outside_of_the_log(
        self, timeout_ms: int
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b")
            client = await (await Client(cluster).create()).subscribe("t")
            seek = Seek(topic="t", partition=0, offset=99)
            await cluster.any.consumers.service.seek(*client.name, [seek])
            assert await client.read(timeout_ms=timeout_ms) == ["a", "b"]

    @virtual
    async def test_waiting_follows_the_leader(self) -> None:
        async with cluster_of() as cluster:
            coordinator = Client(cluster).coordinator
            first = other_than(cluster, coordinator)
            second = other_than(cluster, coordinator, first)
            await cluster.create("t", (first, second))
            client = await (await Client(cluster).create()).subscribe("t")
            reading = asyncio.create_task(client.read(coordinator, timeout_ms=60_000))
            await after(1_000)
            await cluster.kill(first)
            await cluster.until(lambda: cluster.leader_of("t") == second)
            await cluster.nodes[second].write("t", "a")
            await after(1_000)
            assert reading.done()
            assert await reading == ["a"]

    @virtual
    async def test_latest_is_found_when_the_leader_is_back(self) -> None:
        async with cluster_of() as cluster:
            coordinator = Client(cluster).coordinator
            lost = other_than(cluster, coordinator)
            await cluster.create("t", (lost,))
            await cluster.nodes[lost].write("t", "old")
            await cluster.kill(lost)
            await after(5_000)
            client = await (await Client(cluster).create(reset="latest")).subscribe("t")
            await cluster.restart(lost)
            await cluster.until(lambda: cluster.is_led("t"))
            assert await client.read(timeout_ms=500) == []
            await cluster.nodes[lost].write("t", "new")
            assert await client.read(timeout_ms=5_000) == ["new"]


class TestCompaction:
    @virtual
    async def test_what_compaction_removed_is_passed_over(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), **CONFIGS)
            client = await (await Client(cluster).create()).subscribe("t")
            for _ in range(3):
                await update(cluster, 3)
                await compact(cluster, 1, 2, 3)
            await update(cluster, 1)
            found: list[str] = []
            while values := await client.read(timeout_ms=100, max_bytes=12):
                found += values
            assert found[-4:] == ["0"] * 4
            assert len(found) < 40
            await client.commit()
            assert await client.committed() == {0: cluster.runner(1, "t").high_watermark}


class TestSkippedImages:
    @virtual
    async def test_positions_end_if_another_node_may_have_coordinated_in_between(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b")
            client = await (await Client(cluster).create()).subscribe("t")
            assert await client.read() == ["a", "b"]
            # A node that coordinates nothing here goes: the set of coordinators changes once, and no image is skipped.
            gone = other_than(cluster, client.coordinator)
            await cluster.kill(gone)
            await cluster.until(lambda: cluster.image.brokers[gone].is_fenced)
            node = client.at(client.coordinator)
            assert await client.read(node.node_id, timeout_ms=100) == []
            skipped = cluster.image.coordinators_version + 2
            brokers = Map(cluster.image.brokers.items())
            node.consumers.on_image(
                replace(cluster.image, brokers=brokers, coordinators_version=skipped)
            )
            assert await client.read(node.node_id) == ["a", "b"]


class TestWithoutAQuorum:
    @virtual
    async def test_a_coordinator_that_was_cut_off_delivers_nothing(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            client = await (await Client(cluster).create()).subscribe("t")
            old = client.coordinator
            reading = asyncio.create_task(client.read(old, timeout_ms=20_000))
            await after(100)
            cluster.isolate(old)
            await after(5_000)
            other = other_than(cluster, old)
            await cluster.nodes[other].write("t", "a")
            assert await client.read(other, timeout_ms=5_000) == ["a"]
            with pytest.raises(MilenaError):
                await reading


class TestBounds:
    @virtual
    async def test_calls_of_one_consumer_do_not_pile_up(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            client = await (await Client(cluster).create()).subscribe("t")
            calls = [
                asyncio.create_task(client.read(timeout_ms=1_000))
                for _ in range(CALLS_PER_CONSUMER_MAX)
            ]
            await after(10)
            with pytest.raises(TooManyRequestsError):
                await client.read()
            assert await asyncio.gather(*calls) == [[]] * CALLS_PER_CONSUMER_MAX

    @virtual
    async def test_what_one_request_names_is_bounded(self) -> None:
        async with cluster_of() as cluster:
            client = await Client(cluster).create()
            service = cluster.any.consumers.service
            many = [("t", number) for number in range(PARTITIONS_MAX + 1)]
            with pytest.raises(InvalidConsumerError):
                await service.assign(*client.name, many)
            with pytest.raises(InvalidConsumerError):
                await service.committed(*client.name, many)

    @virtual
    async def test_positions_say_where(self) -> None:
        async with cluster_of() as cluster:
            client = await Client(cluster).create()
            for seek in (Seek(topic="t", partition=0), Seek(topic="t", partition=0, offset=-1)):
                with pytest.raises(MalformedRequestError):
                    await cluster.any.consumers.service.seek(*client.name, [seek])
