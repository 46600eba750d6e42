"""Rules of REST consumers on a cluster: any node serves any of them, and they outlive their coordinator."""

import asyncio
from dataclasses import replace

import pytest

from http_api.ports.groups import NewConsumer, OffsetToCommit, Reset, Seek
from milena.model.errors import (
    ConsumerExistsError,
    ConsumerNotFoundError,
    FeatureLevelError,
    InvalidConsumerError,
    OffsetOutOfRangeError,
    SubscriptionConflictError,
    TopicNotFoundError,
)
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.transacting import to, transact
from tests.support.groups.sim_consumers import GROUP, Client, wanted
from tests.support.time.virtual_time import LoopClock, after, virtual


async def now_ms() -> int:
    return LoopClock().now_ms()


class TestCommitsThatNameTheNextRecord:
    @virtual
    async def test_every_node_knows_what_a_consumer_said(self) -> None:
        async with cluster_of() as cluster:
            await cluster.until(lambda: cluster.image.feature_level >= 11)
            for name, is_next in (("last", False), ("next", True)):
                consumer = replace(wanted(name), commits_next=is_next)
                await cluster.nodes[1].consumers.service.create(GROUP, consumer)
                for node in cluster.nodes.values():
                    assert await node.consumers.service.commits_next(GROUP, name) is is_next

    @virtual
    async def test_none_is_made_while_a_node_would_take_its_commits_otherwise(self) -> None:
        async with cluster_of(Cluster(feature_max=10)) as cluster:
            await cluster.until(lambda: cluster.image.feature_level >= 3)
            service = cluster.nodes[1].consumers.service
            with pytest.raises(FeatureLevelError, match="level 11"):
                await service.create(GROUP, replace(wanted(), commits_next=True))
            assert not cluster.image.consumers
            await service.create(GROUP, wanted())


class TestOnAnyNode:
    @virtual
    async def test_each_call_may_go_to_another_node(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.nodes[1].write("t", "a", "b")
            client = await Client(cluster).create(1)
            await client.subscribe("t", node_id=2)
            assert await client.read(3) == ["a", "b"]
            await client.commit(node_id=1)
            assert await client.committed() == {0: 2}
            found = await cluster.nodes[2].consumers.service.subscription(*client.name)
            assert (found.topics, found.pattern, found.partitions) == (["t"], None, [("t", 0)])

    @virtual
    async def test_a_pattern_is_told_with_the_topics_that_it_matches(self) -> None:
        async with cluster_of() as cluster:
            for topic in ("b-1", "a-1", "a-2"):
                await cluster.create(topic, (1, 2, 3))
            client = await Client(cluster).create(1)
            service = cluster.nodes[2].consumers.service
            await service.subscribe(*client.name, (), "a-.*")
            found = await cluster.nodes[3].consumers.service.subscription(*client.name)
            assert (found.topics, found.pattern) == (["a-1", "a-2"], "a-.*")

    @virtual
    async def test_a_name_is_taken_once(self) -> None:
        async with cluster_of() as cluster:
            client = await Client(cluster).create(1)
            with pytest.raises(ConsumerExistsError):
                await client.create(2)

    @virtual
    async def test_who_gives_no_name_is_given_one(self) -> None:
        async with cluster_of() as cluster:
            service = cluster.any.consumers.service
            names = {await service.create(GROUP, wanted(None)) for _ in range(3)}
            assert len(names) == 3

    @virtual
    async def test_what_is_deleted_is_gone_everywhere(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            client = await (await Client(cluster).create()).subscribe("t")
            await cluster.nodes[2].consumers.service.delete(*client.name)
            for node_id in cluster.nodes:
                with pytest.raises(ConsumerNotFoundError):
                    await client.read(node_id)
            assert not cluster.image.groups[GROUP].members

    @virtual
    @pytest.mark.parametrize(
        "settings",
        [wanted(reset="middle"), wanted(min_bytes=-2), wanted(timeout_ms=10**9), wanted("")],
    )
    async def test_settings_out_of_range_are_refused(self, settings: NewConsumer) -> None:
        async with cluster_of() as cluster:
            with pytest.raises(InvalidConsumerError):
                await cluster.any.consumers.service.create(GROUP, settings)


class TestSubscriptions:
    @virtual
    async def test_subscribing_again_replaces(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2))
            await cluster.create("u", (2, 3))
            client = await (await Client(cluster).create()).subscribe("t")
            await client.subscribe("u")
            assert await cluster.any.consumers.service.assignments(*client.name) == [("u", 0)]

    @virtual
    async def test_subscription_and_assignment_exclude_each_other(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2))
            service = cluster.any.consumers.service
            client = await (await Client(cluster).create()).subscribe("t")
            with pytest.raises(SubscriptionConflictError):
                await service.assign(*client.name, [("t", 0)])
            await service.unsubscribe(*client.name)
            await service.assign(*client.name, [("t", 0)])
            with pytest.raises(SubscriptionConflictError):
                await client.subscribe("t")

    @virtual
    async def test_what_is_assigned_must_exist(self) -> None:
        async with cluster_of() as cluster:
            client = await Client(cluster).create()
            with pytest.raises(TopicNotFoundError):
                await cluster.any.consumers.service.assign(*client.name, [("none", 0)])

    @virtual
    async def test_without_either_there_is_nothing_to_read(self) -> None:
        async with cluster_of() as cluster:
            client = await Client(cluster).create()
            with pytest.raises(SubscriptionConflictError):
                await client.read()

    @virtual
    async def test_two_consumers_share_a_topic(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2), (2, 3), (3, 1), (1, 3))
            one = await (await Client(cluster, "one").create()).subscribe("t")
            two = await (await Client(cluster, "two").create()).subscribe("t")
            await after(100)
            for number in range(4):
                await cluster.any.write("t", f"v{number}", partition=number)
            await after(100)
            first, second = await one.read(), await two.read()
            assert len(first) == len(second) == 2
            assert sorted(first + second) == ["v0", "v1", "v2", "v3"]

    @virtual
    async def test_a_topic_that_does_not_exist_yet_is_read_from_its_first_record(self) -> None:
        async with cluster_of() as cluster:
            client = await Client(cluster).create(reset="latest")
            await client.subscribe("later")
            await cluster.any.write("later", "a", "b", partition=None)
            assert await client.read() == ["a", "b"]


class TestReading:
    @virtual
    async def test_an_empty_answer_takes_the_whole_timeout(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            client = await (await Client(cluster).create(timeout_ms=700)).subscribe("t")
            for timeout_ms, expected in ((None, 700), (2_500, 2_500), (0, 0)):
                started = await now_ms()
                assert await client.read(timeout_ms=timeout_ms) == []
                assert await now_ms() - started == expected

    @virtual
    @pytest.mark.parametrize("replicas", [(1,), (2,), (3,)])
    async def test_a_record_ends_the_wait_wherever_it_is_written(
        self, replicas: tuple[int]
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", replicas)
            client = await (await Client(cluster).create()).subscribe("t")
            started = await now_ms()
            reading = asyncio.create_task(client.read(timeout_ms=60_000))
            await after(10_000)
            await cluster.nodes[replicas[0]].write("t", "a")
            assert await reading == ["a"]
            assert await now_ms() - started < 10_100

    @virtual
    async def test_waiting_asks_nobody_again_and_again(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1,))
            await cluster.create("u", (2,))
            client = await (await Client(cluster).create()).subscribe("t", "u")
            cluster.network.calls.clear()
            assert await client.read(client.coordinator, timeout_ms=60_000) == []
            kinds = [kind for _, _, kind, _ in cluster.network.calls]
            assert kinds.count("read") <= 2
            assert kinds.count("tail") <= 6

    @virtual
    async def test_an_answer_has_one_record_however_little_is_wanted(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2))
            await cluster.nodes[1].write("t", "aaaa", "bbbb", "cc")
            client = await (await Client(cluster).create()).subscribe("t")
            assert await client.read(max_bytes=1) == ["aaaa"]
            assert await client.read(max_bytes=6) == ["bbbb", "cc"]

    @virtual
    async def test_it_waits_for_as_much_as_the_consumer_asked_for(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2))
            client = await (await Client(cluster).create(min_bytes=4)).subscribe("t")
            await cluster.nodes[1].write("t", "aa")
            reading = asyncio.create_task(client.read(timeout_ms=60_000))
            await after(300)
            assert not reading.done()
            await cluster.nodes[1].write("t", "bb")
            await after(100)
            assert reading.done()
            assert await reading == ["aa", "bb"]

    @virtual
    async def test_what_is_there_does_not_wait_for_more_for_long(self) -> None:
        """As a Kafka broker's fetch.max.wait.ms: clients ask for half a kilobyte and 30 s, and expect no such wait."""
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2))
            client = await (await Client(cluster).create(min_bytes=512)).subscribe("t")
            await cluster.nodes[1].write("t", "aa")
            started = await now_ms()
            assert await client.read(timeout_ms=30_000) == ["aa"]
            assert 450 <= await now_ms() - started <= 600
            reading = asyncio.create_task(client.read(timeout_ms=30_000))
            await after(5_000)
            assert not reading.done()
            await cluster.nodes[1].write("t", "bb")
            await after(600)
            assert reading.done()
            assert await reading == ["bb"]

    @virtual
    async def test_partitions_take_turns(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2), (2, 3))
            for number in range(2):
                await cluster.any.write("t", *(f"{number}{i}" for i in range(3)), partition=number)
            client = await (await Client(cluster).create()).subscribe("t")
            read = [(await client.read(max_bytes=1))[0] for _ in range(6)]
            assert [value[0] for value in read] == ["0", "1"] * 3
            assert sorted(read) == ["00", "01", "02", "10", "11", "12"]

    @virtual
    async def test_calls_are_taken_one_after_the_other(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.nodes[1].write("t", *(f"v{i}" for i in range(20)))
            client = await (await Client(cluster).create()).subscribe("t")
            found = await asyncio.gather(*(client.read(i % 3 + 1, max_bytes=4) for i in range(15)))
            assert sorted(v for part in found for v in part) == sorted(f"v{i}" for i in range(20))

    @virtual
    async def test_a_commit_need_not_wait_for_a_waiting_read(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.nodes[1].write("t", "a")
            client = await (await Client(cluster).create()).subscribe("t")
            assert await client.read() == ["a"]
            reading = asyncio.create_task(client.read(timeout_ms=60_000))
            await after(100)
            started = await now_ms()
            await client.commit()
            assert await now_ms() - started < 100
            await cluster.any.consumers.service.delete(*client.name)
            with pytest.raises(ConsumerNotFoundError):
                await reading

    @virtual
    async def test_what_a_client_that_hung_up_was_to_get_is_for_its_next_call(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            client = await (await Client(cluster).create()).subscribe("t")
            for node_id in cluster.nodes:
                reading = asyncio.create_task(client.read(node_id, timeout_ms=60_000))
                await after(100)
                reading.cancel()
                await after(100)
                await cluster.any.write("t", f"for {node_id}")
                assert await client.read(node_id) == [f"for {node_id}"]

    @virtual
    async def test_an_answer_that_could_not_be_sent_is_delivered_again(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b")
            client = await (await Client(cluster).create()).subscribe("t")
            for node_id in cluster.nodes:
                service = cluster.nodes[node_id].consumers.service
                found = await service.records(*client.name, timeout_ms=0, max_bytes=1)
                service.take_back(*client.name, found)
                await after(10)
            assert await client.read(max_bytes=1) == ["a"]
            service.take_back(*client.name, found)
            assert await client.read(max_bytes=1) == ["b"]


class TestBeginnings:
    @virtual
    async def test_latest_is_from_the_subscription_on(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.nodes[1].write("t", "old")
            client = await (await Client(cluster).create(reset="latest")).subscribe("t")
            await cluster.nodes[1].write("t", "new")
            assert await client.read() == ["new"]

    @virtual
    async def test_also_when_the_coordinator_ends_before_the_first_read(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "old")
            client = await (await Client(cluster).create(reset="latest")).subscribe("t")
            await cluster.any.write("t", "new")
            await cluster.kill(client.coordinator)
            assert await client.read(timeout_ms=10_000) == ["new"]

    @virtual
    @pytest.mark.parametrize(("reset", "committed"), [("latest", {0: 1}), ("earliest", {})])
    async def test_latest_alone_is_committed(self, reset: str, committed: dict[int, int]) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "old")
            client = await Client(cluster).create(reset=reset, is_auto_commit=False)
            await client.subscribe("t")
            assert await client.committed("t", 0) == committed

    @virtual
    async def test_a_new_partition_is_read_from_its_first_record(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            client = await (await Client(cluster).create(reset="latest")).subscribe("t")
            await cluster.any.admin.add_partitions("t", 2)
            await cluster.until(lambda: cluster.is_led("t"))
            await cluster.any.write("t", "first", partition=1)
            assert await client.read(timeout_ms=5_000) == ["first"]

    @virtual
    async def test_without_a_policy_there_must_be_a_commit(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b")
            client = await (await Client(cluster).create(reset="none")).subscribe("t")
            with pytest.raises(OffsetOutOfRangeError):
                await client.read()
            await client.commit(OffsetToCommit(topic="t", partition=0, offset=1))
            assert await client.read() == ["b"]


class TestPositions:
    @virtual
    async def test_seek_by_offset_name_and_time(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b")
            service = cluster.any.consumers.service
            client = await (await Client(cluster).create()).subscribe("t")
            await client.read()
            await after(1_000)
            wall_ms = LoopClock().wall_ms()
            await cluster.any.write("t", "c")
            for seek, expected in (
                (Seek(topic="t", partition=0, offset=1), ["b", "c"]),
                (Seek(topic="t", partition=0, name=Reset.EARLIEST), ["a", "b", "c"]),
                (Seek(topic="t", partition=0, name=Reset.LATEST), []),
                (Seek(topic="t", partition=0, timestamp_ms=wall_ms), ["c"]),
            ):
                await service.seek(*client.name, [seek])
                assert await client.read(2) == expected

    @virtual
    async def test_only_what_is_assigned_has_a_position(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2))
            await cluster.create("u", (1, 2))
            client = await (await Client(cluster).create()).subscribe("t")
            seeks = [Seek(topic="t", partition=0, offset=0), Seek(topic="u", partition=0, offset=0)]
            with pytest.raises(SubscriptionConflictError):
                await cluster.any.consumers.service.seek(*client.name, seeks)

    @virtual
    async def test_records_that_retention_dropped_are_passed_over(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b", "c")
            client = await (await Client(cluster).create()).subscribe("t")
            assert await client.read(max_bytes=1) == ["a"]
            await cluster.any.delete_records("t", 2)
            assert await client.read(timeout_ms=5_000) == ["c"]

    @virtual
    async def test_a_deleted_topic_does_not_stop_the_others(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.create("u", (1, 2, 3))
            client = await (await Client(cluster).create()).subscribe("t", "u")
            await client.read(timeout_ms=10)
            reading = asyncio.create_task(client.read(timeout_ms=60_000))
            await after(100)
            await cluster.any.admin.delete_topic("t")
            await after(1_000)
            await cluster.any.write("u", "a")
            assert await reading == ["a"]
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "anew")
            assert await client.read(timeout_ms=5_000) == ["anew"]


class TestCommits:
    @virtual
    async def test_a_commit_is_what_was_delivered(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b", "c")
            client = await (await Client(cluster).create()).subscribe("t")
            await client.commit()
            assert await client.committed() == {0: 0}, "it stands there, and the group is behind"
            await client.read(max_bytes=2)
            await client.commit()
            assert await client.committed() == {0: 2}

    @virtual
    async def test_a_group_that_has_read_all_is_not_behind(self) -> None:
        async with cluster_of() as cluster:
            await cluster.until(lambda: cluster.image.feature_level >= 6)
            await cluster.create("t", (1, 2), (2, 3))
            await transact(cluster, 1, to("t", 0, "a"))
            client = await (await Client(cluster).create()).subscribe("t")
            assert await client.read() == ["a"]
            await client.commit()
            # The second partition is empty, and what comes there is known to be unread.
            rows = cluster.image.offsets[GROUP].items()
            committed = {partition: row.offset for (_, partition), row in rows}
            assert committed == {0: 2, 1: 0}
            await cluster.nodes[1].write("t", "b", partition=1)
            lags = []
            for partition in (0, 1):
                offsets = await cluster.nodes[3].reads.offsets(
                    "t", partition, wants_records_end=True
                )
                lags.append(offsets.lag_of(committed[partition]))
            assert lags == [0, 1]

    @virtual
    async def test_by_itself_it_commits_what_earlier_calls_delivered(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b", "c")
            client = await Client(cluster).create(is_auto_commit=True)
            await client.subscribe("t")
            await client.read(max_bytes=1)
            await after(5_000)
            await client.read(max_bytes=1)
            assert await client.committed() == {0: 1}
            await cluster.any.consumers.service.delete(*client.name)
            assert [row.offset for row in cluster.image.offsets[GROUP].values()] == [2]

    @virtual
    async def test_what_a_member_loses_its_successor_goes_on_with(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), (1, 2, 3))
            one = await Client(cluster, "one").create(is_auto_commit=True)
            await one.subscribe("t")
            for number in range(2):
                await cluster.any.write("t", f"{number}a", f"{number}b", partition=number)
            read = await one.read(max_bytes=1) + await one.read(max_bytes=1)
            read += await one.read(max_bytes=1)
            two = await (await Client(cluster, "two").create()).subscribe("t")
            await after(1_000)
            rest = await two.read()
            # The last answer may not have arrived: only it may come again.
            assert set(rest) & set(read[:-1]) == set()
            rest += await one.read()
            assert set(read + rest) == {"0a", "0b", "1a", "1b"}


class TestLifeAndDeath:
    @virtual
    async def test_delivery_starts_over_at_the_last_commit(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b", "c")
            client = await (await Client(cluster).create()).subscribe("t")
            assert await client.read(max_bytes=1) == ["a"]
            await client.commit()
            assert await client.read() == ["b", "c"]
            await cluster.kill(client.coordinator)
            assert await client.read(timeout_ms=10_000) == ["b", "c"]

    @virtual
    async def test_a_waiting_read_outlives_the_coordinator(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            client = await (await Client(cluster).create()).subscribe("t")
            other = next(i for i in cluster.nodes if i != client.coordinator)
            reading = asyncio.create_task(client.read(other, timeout_ms=60_000))
            await after(20_000)
            await cluster.kill(client.coordinator)
            await after(10_000)
            await cluster.nodes[other].write("t", "a")
            assert await reading == ["a"]

    @virtual
    async def test_a_coordinator_that_stops_in_order_hands_over(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.any.write("t", "a", "b")
            client = await (await Client(cluster).create()).subscribe("t")
            other = next(i for i in cluster.nodes if i != client.coordinator)
            assert await client.read(other, max_bytes=1) == ["a"]
            await client.commit(node_id=other)
            assert await client.read(other) == ["b"]
            reading = asyncio.create_task(client.read(other, timeout_ms=60_000))
            await after(1_000)
            await cluster.stop_gracefully(client.coordinator)
            # The last answer was not committed, so it comes again.
            assert await reading == ["b"]

    @virtual
    async def test_nobody_calls_and_it_is_forgotten(self) -> None:
        async with cluster_of(Cluster(idle_ms=10_000)) as cluster:
            await cluster.create("t", (1, 2, 3))
            kept = await (await Client(cluster, "kept").create()).subscribe("t")
            await (await Client(cluster, "lost").create()).subscribe("t")
            for _ in range(4):
                await after(4_000)
                await kept.read(timeout_ms=10)
            assert [instance for _, instance in cluster.image.consumers] == ["kept"]
            assert [m.member_id for m in cluster.image.groups[GROUP].members] == ["kept"]
            assert len(await cluster.any.consumers.service.assignments(*kept.name)) == 1

    @virtual
    async def test_who_waits_for_records_is_not_idle(self) -> None:
        async with cluster_of(Cluster(idle_ms=10_000)) as cluster:
            await cluster.create("t", (1, 2, 3))
            client = await (await Client(cluster).create()).subscribe("t")
            assert await client.read(timeout_ms=60_000) == []
            assert await client.read(timeout_ms=10) == []

    @virtual
    async def test_idle_calls_write_nothing(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            client = await Client(cluster).create(is_auto_commit=True)
            await client.subscribe("t")
            index = cluster.image.index
            for _ in range(30):
                await client.read()
            assert cluster.image.index == index
