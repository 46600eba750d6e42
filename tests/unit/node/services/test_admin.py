"""Rules of changing the replicated state from any node, and of looking something up that this node has not seen yet."""

import asyncio
from dataclasses import replace

import pytest

from http_api.ports.node import NewTopic
from milena.model.errors import (
    BrokerInUseError,
    BrokerNotFoundError,
    FateUnknownError,
    InvalidConfigError,
    InvalidReplicationError,
    InvalidTopicNameError,
    NoQuorumError,
    NotReadyError,
    TooManyReplicasError,
    TopicExistsError,
    TopicNotFoundError,
)
from raft_meta.machine import bounds
from raft_meta.machine.image import Topic
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.overtaken import created_again
from tests.support.time.virtual_time import after, virtual


def new(name: str, **options: object) -> NewTopic:
    fields: dict[str, object] = {"partition_count": None, "replication_factor": None}
    return NewTopic(name=name, **(fields | options))  # type: ignore[arg-type]


class TestCreate:
    @virtual
    async def test_the_answer_comes_when_this_node_has_the_topic(self) -> None:
        async with cluster_of() as cluster:
            topic = await cluster.nodes[2].admin.create_topic(new("t", partition_count=2))
            assert cluster.nodes[2].metadata.image.topic("t") == topic
            assert (topic.partition_count, topic.replication_factor) == (2, 3)

    @virtual
    async def test_a_name_is_taken_once_on_whichever_node(self) -> None:
        async with cluster_of() as cluster:
            await cluster.nodes[1].admin.create_topic(new("t"))
            cluster.nodes[2].quorum.is_stopped = True
            await cluster.nodes[1].admin.create_topic(new("u"))
            cluster.nodes[2].quorum.is_stopped = False
            for name in ("t", "u"):
                with pytest.raises(TopicExistsError):
                    await cluster.nodes[2].admin.create_topic(new(name))

    @virtual
    async def test_bad_wishes_are_refused_before_the_quorum_sees_them(self) -> None:
        async with cluster_of() as cluster:
            create = cluster.nodes[1].admin.create_topic
            count = len(cluster.log.commands)
            with pytest.raises(InvalidTopicNameError):
                await create(new("a b"))
            for options in (
                {"partition_count": 0},
                {"partition_count": 1_001},
                {"replication_factor": 4},
                {"replication_factor": 0},
                {"replicas_assignments": {0: [1, 9]}},
                {"replicas_assignments": {0: [1, 1]}},
                {"replicas_assignments": {1: [1]}},
                {"replicas_assignments": {0: [1], 1: [1, 2]}},
                {"replicas_assignments": {0: []}},
            ):
                with pytest.raises(InvalidReplicationError):
                    await create(new("t", **options))
            for partitions in (1_001, 5_000, 10_001, 100_000):
                with pytest.raises(
                    InvalidReplicationError, match=f"{partitions}: .* from 1 to 1000,"
                ):
                    await create(new("t", partition_count=partitions))
            with pytest.raises(InvalidConfigError):
                await create(new("t", configs={"no.such": "1"}))
            assert len(cluster.log.commands) == count

    @virtual
    async def test_replicas_may_be_named(self) -> None:
        async with cluster_of() as cluster:
            topic = await cluster.nodes[1].admin.create_topic(
                new("t", replicas_assignments={0: [3, 1], 1: [2, 3]})
            )
            placed = [cluster.image.partitions[topic.topic_id, p].replicas for p in (0, 1)]
            assert placed == [(3, 1), (2, 3)]

    @virtual
    async def test_validating_changes_nothing(self) -> None:
        async with cluster_of() as cluster:
            made = await cluster.nodes[1].admin.create_topic(new("t", is_validate_only=True))
            assert isinstance(made, Topic)
            assert cluster.image.topic("t") is None

    @virtual
    async def test_a_node_that_is_just_starting_costs_no_topic_a_replica(self) -> None:
        cluster = Cluster()
        for node_id in (1, 2):
            await cluster.restart(node_id)
        await cluster.until(lambda: all(n.membership.is_unfenced for n in cluster.nodes.values()))
        creating = asyncio.ensure_future(cluster.nodes[1].admin.create_topic(new("t")))
        await after(500)
        assert not creating.done()
        await cluster.restart(3)
        assert (await creating).replication_factor == 3
        await cluster.close()

    @virtual
    async def test_a_node_that_never_came_is_named_as_what_is_missing(self) -> None:
        cluster = Cluster()
        for node_id in (1, 2):
            await cluster.restart(node_id)
        await cluster.until(lambda: all(n.membership.is_unfenced for n in cluster.nodes.values()))
        with pytest.raises(NotReadyError, match="only 2 nodes have ever started"):
            await cluster.nodes[1].admin.create_topic(new("u"))
        topic = await cluster.nodes[1].admin.create_topic(new("u", replication_factor=2))
        assert topic.replication_factor == 2
        await cluster.close()

    @virtual
    async def test_a_node_that_is_down_costs_no_topic_a_replica(self) -> None:
        async with cluster_of() as cluster:
            await cluster.kill(3)
            await cluster.until(lambda: cluster.image.live_brokers() == (1, 2))
            began = asyncio.get_running_loop().time()
            topic = await cluster.nodes[1].admin.create_topic(new("t"))
            assert asyncio.get_running_loop().time() - began < 1, "nobody is waited for"
            await cluster.nodes[1].write("t", "a")
            assert cluster.image.partition(topic.topic_id, 0).isr in ((1, 2), (2, 1))
            await cluster.restart(3)
            await cluster.until(
                lambda: 3 in cluster.image.partition(topic.topic_id, 0).isr  # type: ignore[union-attr]
            )
            assert await cluster.nodes[3].read("t", is_local=True) == ["a"]

    @virtual
    async def test_many_writers_to_a_missing_topic_create_it_once(self) -> None:
        async with cluster_of() as cluster:
            topics = await asyncio.gather(
                *(
                    cluster.nodes[i].admin.topic_to_write("t", may_create=True)
                    for i in (1, 1, 2, 2, 3)
                )
            )
            assert len({topic.topic_id for topic in topics}) == 1

    @virtual
    async def test_without_auto_creation_a_missing_topic_is_not_found(self) -> None:
        async with cluster_of() as cluster:
            admin = cluster.nodes[1].admin
            object.__setattr__(admin.defaults, "is_auto_create", False)
            with pytest.raises(TopicNotFoundError):
                await admin.topic_to_write("t", may_create=True)


class TestGrow:
    @virtual
    async def test_a_topic_gets_the_partitions_that_it_lacks(self) -> None:
        async with cluster_of() as cluster:
            admin = cluster.nodes[2].admin
            await admin.create_topic(new("t", partition_count=2))
            topic = await admin.add_partitions("t", 6)
            assert topic.partition_count == 6
            assert admin.image.topic("t") == topic
            leaders = [cluster.image.partitions[topic.topic_id, p].leader for p in range(6)]
            assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
            await cluster.until(lambda: cluster.is_led("t"))
            receipt = (await cluster.nodes[1].write("t", "a", partition=5))[0]
            assert (receipt.error, receipt.offset) == (None, 0)

    @virtual
    async def test_asking_for_what_is_there_changes_nothing(self) -> None:
        async with cluster_of() as cluster:
            admin = cluster.nodes[1].admin
            await admin.create_topic(new("t", partition_count=2))
            count = len(cluster.log.commands)
            assert (await admin.add_partitions("t", 2)).partition_count == 2
            with pytest.raises(InvalidReplicationError, match="cannot become fewer"):
                await admin.add_partitions("t", 1)
            with pytest.raises(InvalidReplicationError, match="at most 10000"):
                await admin.add_partitions("t", 10_001)
            with pytest.raises(InvalidReplicationError, match="at most 1000 partitions, not 1001"):
                await admin.add_partitions("t", 1_003)
            with pytest.raises(TopicNotFoundError):
                await admin.add_partitions("nope", 2)
            assert len(cluster.log.commands) == count

    @virtual
    async def test_the_brokers_of_new_partitions_may_be_named(self) -> None:
        async with cluster_of() as cluster:
            admin = cluster.nodes[1].admin
            topic = await admin.create_topic(new("t", replication_factor=2))
            await admin.add_partitions("t", 3, replicas=[[3, 1], [2, 3]])
            placed = [cluster.image.partitions[topic.topic_id, p].replicas for p in (1, 2)]
            assert placed == [(3, 1), (2, 3)]
            count = len(cluster.log.commands)
            for replicas, reason in (
                (
                    [[1, 2], [2, 3]],
                    "places? 2 new partitions, but topic 't' grows from 3 partitions to 4",
                ),
                ([], "places? 0 new partitions"),
                ([[1, 9]], "must be distinct ids"),
                ([[1, 1]], "must be distinct ids"),
                ([[]], "must be distinct ids"),
                ([[1]], "must have 2 replicas"),
                ([[1, 2, 3]], "must have 2 replicas"),
            ):
                with pytest.raises(InvalidReplicationError, match=reason):
                    await admin.add_partitions("t", 4, replicas=replicas)
            assert len(cluster.log.commands) == count

    @virtual
    async def test_growth_may_be_checked_without_a_change(self) -> None:
        async with cluster_of() as cluster:
            admin = cluster.nodes[1].admin
            await admin.create_topic(new("t"))
            count = len(cluster.log.commands)
            await admin.add_partitions("t", 3, is_validate_only=True)
            await admin.add_partitions("t", 2, replicas=[[1, 2, 3]], is_validate_only=True)
            with pytest.raises(InvalidReplicationError):
                await admin.add_partitions("t", 10_001, is_validate_only=True)
            assert len(cluster.log.commands) == count

    @virtual
    async def test_who_is_overtaken_looks_again(self) -> None:
        async with cluster_of(Cluster(network_ms=lambda rng: 5.0)) as cluster:
            await cluster.nodes[1].admin.create_topic(new("t"))
            grown = await asyncio.gather(
                *(cluster.nodes[i].admin.add_partitions("t", 4) for i in (1, 2, 3))
            )
            assert [topic.partition_count for topic in grown] == [4, 4, 4]

    @virtual
    async def test_no_node_is_given_more_than_it_carries(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bounds, "REPLICAS_PER_BROKER_MAX", 2)
        async with cluster_of() as cluster:
            admin = cluster.nodes[1].admin
            with pytest.raises(TooManyReplicasError, match="would hold 3 replicas"):
                await admin.create_topic(new("t", partition_count=3))
            await admin.create_topic(new("t"))
            with pytest.raises(TooManyReplicasError):
                await admin.add_partitions("t", 3)
            assert (await admin.add_partitions("t", 2)).partition_count == 2


class TestRemoveBroker:
    @virtual
    async def test_a_node_that_is_gone_is_forgotten_and_may_come_back(self) -> None:
        cluster = Cluster(node_ids=(1, 2, 3, 4))
        async with cluster_of(cluster):
            admin = cluster.nodes[1].admin
            with pytest.raises(BrokerNotFoundError):
                await admin.remove_broker(5)
            await cluster.kill(4)
            await cluster.until(lambda: cluster.image.brokers[4].is_fenced)
            # Of these four all are voters, which is not so in a cluster that was given more nodes.
            for node in cluster.nodes.values():
                node.machine.image = replace(node.machine.image, voters=(1, 2, 3))
            await admin.topic_to_write("t", may_create=True)
            await admin.remove_broker(4)
            assert set(admin.image.brokers) == {1, 2, 3}
            await cluster.restart(4)
            await cluster.until(lambda: cluster.nodes[4].membership.is_unfenced)

    @virtual
    async def test_a_voter_is_told_first_that_it_stays(self) -> None:
        """Not after it was stopped and its replicas were moved away."""
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            for node in cluster.nodes.values():
                node.machine.image = replace(node.machine.image, voters=(1, 2, 3))
            with pytest.raises(BrokerInUseError, match="3 is a voter"):
                await cluster.nodes[1].admin.remove_broker(3)

    @virtual
    async def test_who_came_back_meanwhile_is_in_use(self) -> None:
        async with cluster_of(Cluster(node_ids=(1, 2, 3, 4))) as cluster:
            admin = cluster.nodes[1].admin
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("node.services.admin.check_removable", lambda *_, **__: None)
                for node in cluster.nodes.values():
                    node.machine.image = replace(node.machine.image, voters=(1, 2, 3))
                with pytest.raises(BrokerInUseError, match="alive"):
                    await admin.remove_broker(4)


class TestLookUp:
    @virtual
    async def test_what_one_node_has_answered_every_node_finds(self) -> None:
        async with cluster_of() as cluster:
            behind = cluster.nodes[3]
            behind.quorum.is_stopped = True
            await cluster.nodes[1].admin.create_topic(new("t"))
            behind.quorum.is_stopped = False
            assert behind.metadata.image.topic("t") is None
            assert (await behind.admin.topic("t")).name == "t"

    @virtual
    async def test_nobody_says_not_found_without_a_majority(self) -> None:
        async with cluster_of() as cluster:
            cluster.isolate(3)
            with pytest.raises(NoQuorumError):
                await cluster.nodes[3].admin.topic("t")

    @virtual
    async def test_questions_that_come_together_share_barriers(self) -> None:
        async with cluster_of(Cluster(network_ms=lambda rng: 5.0)) as cluster:
            node = cluster.nodes[1]
            count = 0
            real = node.quorum.barrier

            async def barrier(*, timeout_ms: int) -> int:
                nonlocal count
                count += 1
                return await real(timeout_ms=timeout_ms)

            node.quorum.barrier = barrier  # type: ignore[method-assign]
            results = await asyncio.gather(
                *(node.admin.topic("t") for _ in range(50)), return_exceptions=True
            )
            assert all(isinstance(result, TopicNotFoundError) for result in results)
            assert count <= 2

    @virtual
    async def test_changes_can_be_waited_for(self) -> None:
        async with cluster_of() as cluster:
            index = cluster.nodes[2].metadata.image.index
            waiting = asyncio.ensure_future(
                cluster.nodes[2].admin.image_since(index, timeout_ms=10_000)
            )
            await after(100)
            assert not waiting.done()
            await cluster.nodes[1].admin.create_topic(new("t"))
            assert (await waiting).topic("t") is not None
            later = await cluster.nodes[2].admin.image_since(10**9, timeout_ms=200)
            assert later.topic("t") is not None


class TestChange:
    @virtual
    async def test_delete_and_configs(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            admin = cluster.nodes[2].admin
            await admin.alter_configs("t", {"retention.ms": "5"}, is_validate_only=True)
            assert "retention.ms" not in (await admin.topic("t")).configs
            await admin.alter_configs("t", {"retention.ms": "5"}, is_validate_only=False)
            assert (await admin.topic("t")).configs["retention.ms"] == "5"
            await admin.alter_configs("t", {"retention.ms": None}, is_validate_only=False)
            with pytest.raises(InvalidConfigError):
                await admin.alter_configs("t", {"retention.ms": "x"}, is_validate_only=False)
            await admin.delete_topic("t")
            with pytest.raises(TopicNotFoundError):
                await cluster.nodes[3].admin.delete_topic("t")

    @virtual
    async def test_whether_it_happened_is_said_as_far_as_it_is_known(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            node = cluster.nodes[1]
            node.quorum.faults = ["refused"]
            with pytest.raises(NoQuorumError, match="nothing was changed"):
                await node.admin.delete_topic("t")
            node.quorum.faults = ["vanished"] * 50
            with pytest.raises(FateUnknownError, match="may yet happen"):
                await node.admin.delete_topic("t")
            node.quorum.faults = ["refused"]
            with pytest.raises(NoQuorumError, match="nothing was changed"):
                await node.admin.allocate_producer(None)

    @virtual
    async def test_a_named_producer_keeps_its_id_and_hears_how_far_it_wrote(self) -> None:
        async with cluster_of() as cluster:
            first = await cluster.nodes[1].admin.allocate_producer("p")
            again = await cluster.nodes[2].admin.allocate_producer("p")
            other = await cluster.nodes[3].admin.allocate_producer(None)
            assert again.producer_id == first.producer_id != other.producer_id
            assert (first.producer_epoch, again.producer_epoch) == (0, 1)


class TestATopicThatWasCreatedAgain:
    """Node 3 knows the former topic of the name only."""

    @virtual
    async def test_it_is_deleted(self) -> None:
        async with cluster_of() as cluster:
            await created_again(cluster, 3)
            present = cluster.image.topic("t")
            assert await cluster.nodes[3].admin.delete_topic("t") == present
            assert cluster.image.topic("t") is None

    @virtual
    async def test_its_configs_are_changed(self) -> None:
        async with cluster_of() as cluster:
            await created_again(cluster, 3)
            change = {"flush.ms": "5"}
            await cluster.nodes[3].admin.alter_configs("t", change, is_validate_only=False)
            topic = cluster.image.topic("t")
            assert topic is not None
            assert topic.configs["flush.ms"] == "5"

    @virtual
    async def test_the_former_one_is_not_found(self) -> None:
        async with cluster_of() as cluster:
            await created_again(cluster, 3)
            admin = cluster.nodes[3].admin
            former = admin.image.topic("t")
            assert former is not None
            with pytest.raises(TopicNotFoundError):
                await admin.delete_topic("t", topic_id=former.topic_id)
            assert cluster.image.topic("t") is not None
