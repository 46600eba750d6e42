"""Reassignments, and pages of partitions."""

from typing import Any

import pytest

from node.kafka.apis import partitions
from node.kafka.rights import bits_of
from raft_meta.machine.commands import ElectLeaders, LeaderChange
from tests.support.clusters.kafka_clients import KafkaClient, client_of
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.overtaken import deaf
from tests.support.time.virtual_time import virtual

FIVE = (1, 2, 3, 4, 5)
NONE, UNKNOWN, TIMED_OUT = 0, 3, 7
NOT_AVAILABLE, NOT_NEEDED = 80, 84
BAD_FACTOR, BAD_ASSIGNMENT, BAD_REQUEST, NOT_MOVING = 38, 39, 42, 85
INT32 = (-(1 << 31), (1 << 31) - 1)


async def reassign(
    client: KafkaClient, *moves: tuple[str, int, list[int] | None], version: int = 1, **fields: Any
) -> Any:
    topics = [
        {"name": name, "partitions": [{"partition_index": partition, "replicas": replicas}]}
        for name, partition, replicas in moves
    ]
    return await client.call(45, version, topics=topics, **({"timeout_ms": 5_000} | fields))


def codes(found: Any) -> list[int]:
    assert (found.error_code, found.error_message) == (NONE, None)
    return [part.error_code for topic in found.responses for part in topic.partitions]


def replicas_of(cluster: Cluster, topic: str, partition: int = 0) -> tuple[int, ...]:
    state = cluster.image.partitions[cluster.image.topic_ids[topic], partition]
    return state.replicas if state.moving is None else ()


def leader_of(cluster: Cluster, topic: str) -> int | None:
    return cluster.image.partitions[cluster.image.topic_ids[topic], 0].leader


async def listed(client: KafkaClient, topics: Any = None) -> Any:
    found = await client.call(46, 0, topics=topics, timeout_ms=5_000)
    assert (found.error_code, found.error_message) == (NONE, None)
    return [
        (topic.name, p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
        for topic in found.topics
        for p in topic.partitions
    ]


class TestReassignments:
    @pytest.mark.parametrize("version", range(2))
    @virtual
    async def test_a_partition_moves(self, version: int) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3))
            found = await reassign(
                client_of(cluster.nodes[2]), ("t", 0, [4, 5, 1]), version=version
            )
            assert codes(found) == [NONE]
            await cluster.until(lambda: replicas_of(cluster, "t") == (4, 5, 1))
            assert await listed(client_of(cluster.nodes[2])) == []

    @virtual
    async def test_moves_are_listed_and_cancelled(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3), (1, 2, 3))
            client = client_of(cluster.nodes[1])
            # Moves to brokers that are down go on until they are back.
            await cluster.kill(4)
            await cluster.kill(5)
            assert codes(await reassign(client, ("t", 0, [4, 2, 3]), ("t", 1, [1, 2, 5]))) == [0, 0]
            await cluster.until(lambda: len(replicas_of(cluster, "t")) == 0)
            both = await listed(client)
            assert [
                (name, number, adding, removing) for name, number, _, adding, removing in both
            ] == [
                ("t", 0, [4], [1]),
                ("t", 1, [5], [3]),
            ]
            asked = [
                {"name": "t", "partition_indexes": [1, 9, *INT32]},
                {"name": "u", "partition_indexes": [0]},
            ]
            assert await listed(client, asked) == [both[1]]
            assert await listed(client, []) == []
            assert codes(await reassign(client, ("t", 0, None), ("t", 1, None))) == [NONE, NONE]
            assert await listed(client) == []
            assert codes(await reassign(client, ("t", 0, None))) == [NOT_MOVING]

    @virtual
    async def test_each_partition_fails_by_itself(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3), (1, 2, 3), (1, 2, 3))
            moves: list[tuple[str, int, list[int] | None]] = [
                ("no", 0, [1, 2, 3]),
                ("t", 1, []),
                ("t", 0, [4, 5, 1]),
                ("t", 3, [1, 2, 3]),
                ("t", INT32[0], [1, 2, 3]),
                ("t", INT32[1], None),
                ("t", 2, list(INT32)),
                ("", 0, None),
            ]
            found = await reassign(client_of(cluster.nodes[1]), *moves)
            assert codes(found) == [
                UNKNOWN,
                BAD_ASSIGNMENT,
                NONE,
                *[UNKNOWN] * 3,
                BAD_ASSIGNMENT,
                UNKNOWN,
            ]
            assert [topic.name for topic in found.responses] == [name for name, _, _ in moves]
            await cluster.until(lambda: replicas_of(cluster, "t") == (4, 5, 1))

    @virtual
    async def test_the_number_of_replicas_changes_only_if_the_client_allows_it(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3), (1, 2, 3))
            client = client_of(cluster.nodes[1])
            moves: list[tuple[str, int, list[int] | None]] = [
                ("t", 0, [1, 2, 3, 4]),
                ("t", 1, [3, 2, 1]),
            ]
            found = await reassign(client, *moves, allow_replication_factor_change=False)
            assert codes(found) == [BAD_FACTOR, NONE]
            assert not found.allow_replication_factor_change
            found = await reassign(client, moves[0], allow_replication_factor_change=False)
            assert codes(found) == [BAD_FACTOR]
            assert codes(await reassign(client, moves[0])) == [NONE]
            await cluster.until(lambda: replicas_of(cluster, "t") == (1, 2, 3, 4))

    @virtual
    async def test_a_request_without_partitions_moves_nothing(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2, 3), (1, 2, 3), (1, 2, 3))
            client = client_of(cluster.nodes[1])
            count = len(cluster.log.commands)
            assert codes(await client.call(45, 0, topics=[], timeout_ms=5_000)) == []
            empty = [{"name": "t", "partitions": []}]
            assert codes(await client.call(45, 0, topics=empty, timeout_ms=5_000)) == []
            assert len(cluster.log.commands) == count

    @virtual
    async def test_without_a_majority_the_request_fails_as_a_whole(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2))
            await cluster.kill(2)
            await cluster.kill(3)
            found = await reassign(client_of(cluster.nodes[1]), ("t", 0, [1, 3]), timeout_ms=1_000)
            assert (found.error_code, found.responses) == (TIMED_OUT, [])
            assert "may yet move" in found.error_message

    @virtual
    async def test_too_many_partitions_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(partitions, "ITEMS_MAX", 1)
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2), (1, 2))
            client = client_of(cluster.nodes[1])
            found = await reassign(client, ("t", 0, [2, 3]), ("t", 1, [2, 3]))
            assert (found.error_code, found.responses) == (BAD_REQUEST, [])


class TestElections:
    @staticmethod
    async def elect(
        client: KafkaClient, *wanted: tuple[str, list[int]], version: int = 2, **fields: Any
    ) -> list[tuple[str, int, int]]:
        topics = [{"topic": name, "partitions": numbers} for name, numbers in wanted]
        found = await client.call(
            43, version, **({"topic_partitions": topics, "timeout_ms": 5_000} | fields)
        )
        assert found.error_code in {None, NONE}
        return [
            (topic.topic, part.partition_id, part.error_code)
            for topic in found.replica_election_results
            for part in topic.partition_result
        ]

    @staticmethod
    async def displaced(cluster: Cluster) -> None:
        """Topic t, whose first partition is led by another than its first replica."""
        await cluster.create("t", (2, 1, 3), (1, 2, 3))
        await cluster.kill(2)
        await cluster.until(lambda: leader_of(cluster, "t") == 1)

    @pytest.mark.parametrize("version", range(3))
    @virtual
    async def test_leadership_goes_back_to_the_first_replica(self, version: int) -> None:
        async with cluster_of() as cluster:
            await self.displaced(cluster)
            client = client_of(cluster.nodes[3])
            assert await self.elect(client, ("t", [0]), version=version) == [
                ("t", 0, NOT_AVAILABLE)
            ]
            await cluster.restart(2)
            key = (cluster.image.topic_ids["t"], 0)
            await cluster.until(lambda: 2 in cluster.image.partitions[key].isr)
            assert leader_of(cluster, "t") == 1
            found = await self.elect(client, ("t", [0, 1]), version=version)
            assert found == [("t", 0, NONE), ("t", 1, NOT_NEEDED)]
            assert leader_of(cluster, "t") == 2

    @virtual
    async def test_all_partitions_are_elected_that_need_it(self) -> None:
        async with cluster_of() as cluster:
            await self.displaced(cluster)
            client = client_of(cluster.nodes[3])
            assert await self.elect(client, topic_partitions=None) == []
            await cluster.restart(2)
            key = (cluster.image.topic_ids["t"], 0)
            await cluster.until(lambda: 2 in cluster.image.partitions[key].isr)
            assert await self.elect(client, topic_partitions=None) == [("t", 0, NONE)]

    @virtual
    async def test_each_partition_fails_by_itself(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            client = client_of(cluster.nodes[3])
            wanted = [("t", [0, 1, *INT32]), ("no", [0]), ("\u2028" * 10_000, [0])]
            for version in (1, 2):
                found = await self.elect(client, *wanted, version=version)
                assert [code for _, _, code in found] == [NOT_NEEDED, *[UNKNOWN] * 5]
            for kind, code in (
                (1, NOT_NEEDED),
                (2, BAD_REQUEST),
                (127, BAD_REQUEST),
                (-128, BAD_REQUEST),
            ):
                found = await self.elect(client, ("t", [0]), election_type=kind)
                assert found == [("t", 0, code)]

    @virtual
    async def test_an_unclean_election_is_left_to_the_setting_of_the_topic(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2,))
            await cluster.kill(2)
            await cluster.until(lambda: leader_of(cluster, "t") is None)
            client = client_of(cluster.nodes[3])
            assert await self.elect(client, ("t", [0]), election_type=1) == [("t", 0, 83)]

    @virtual
    async def test_without_a_majority_leaders_stay(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            await cluster.kill(2)
            await cluster.kill(3)
            client = client_of(cluster.nodes[1])
            assert await self.elect(client, ("t", [0]), timeout_ms=600) == [("t", 0, TIMED_OUT)]

    @virtual
    async def test_too_many_partitions_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(partitions, "ITEMS_MAX", 1)
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            found = await self.elect(client_of(cluster.nodes[1]), ("t", [0, 1]))
            assert [code for _, _, code in found] == [BAD_REQUEST, BAD_REQUEST]


class TestDescribe:
    @staticmethod
    async def page(client: KafkaClient, *names: str, limit: int = 2_000, cursor: Any = None) -> Any:
        """The rows of a page, and where the next one begins."""
        fields = (
            {}
            if cursor is None
            else {"cursor": {"topic_name": cursor[0], "partition_index": cursor[1]}}
        )
        found = await client.call(
            75,
            0,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            **fields,
        )
        rows = [
            (topic.name, topic.error_code, [p.partition_index for p in topic.partitions])
            for topic in found.topics
        ]
        after = found.next_cursor
        return rows, None if after is None else (after.topic_name, after.partition_index)

    @virtual
    async def test_a_partition_has_leader_replicas_and_epoch(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            found = await client_of(cluster.nodes[1]).call(
                75, 0, topics=[{"name": "t"}], response_partition_limit=10
            )
            (topic,) = found.topics
            (part,) = topic.partitions
            assert topic.topic_id.hex == cluster.image.topic_ids["t"]
            assert (topic.is_internal, topic.topic_authorized_operations) == (
                False,
                bits_of(frozenset({3, 4, 5, 6, 7, 8, 10, 11})),
            )
            assert (part.error_code, part.leader_id, part.leader_epoch) == (NONE, 1, 0)
            assert (part.replica_nodes, sorted(part.isr_nodes)) == ([1, 2, 3], [1, 2, 3])
            assert (part.eligible_leader_replicas, part.last_known_elr, part.offline_replicas) == (
                [],
                [],
                [],
            )

    @virtual
    async def test_pages_follow_each_other_in_the_order_of_names(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("b", *[(1, 2)] * 3)
            await cluster.create("a", *[(1, 2)] * 2)
            client = client_of(cluster.nodes[1])
            everything = [("a", 0, [0, 1]), ("b", 0, [0, 1, 2])]
            assert await self.page(client) == (everything, None)
            assert await self.page(client, "b", "a", "b") == (everything, None)
            assert await self.page(client, limit=1) == ([("a", 0, [0])], ("a", 1))
            assert await self.page(client, limit=1, cursor=("a", 1)) == ([("a", 0, [1])], ("b", 0))
            assert await self.page(client, limit=2, cursor=("b", 0)) == (
                [("b", 0, [0, 1])],
                ("b", 2),
            )
            assert await self.page(client, limit=3) == ([("a", 0, [0, 1]), ("b", 0, [0])], ("b", 1))
            assert await self.page(client, cursor=("b", 2)) == ([("b", 0, [2])], None)
            assert await self.page(client, "a", cursor=("b", 0)) == ([], None)
            # A topic of the cursor that was deleted meanwhile.
            assert await self.page(client, cursor=("aa", 5)) == (everything[1:], None)

    @virtual
    async def test_a_topic_that_is_not_there_counts_as_a_partition(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("b", *[(1, 2)] * 3)
            client = client_of(cluster.nodes[1])
            assert await self.page(client, "a", "b", limit=2) == (
                [("a", UNKNOWN, []), ("b", 0, [0])],
                ("b", 1),
            )

    @virtual
    async def test_numbers_at_the_ends_of_their_fields(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("b", *[(1, 2)] * 3)
            client = client_of(cluster.nodes[1])
            for limit in (INT32[0], -1, 0):
                assert await self.page(client, "b", limit=limit) == ([("b", 0, [0])], ("b", 1))
            assert await self.page(client, "b", limit=INT32[1]) == ([("b", 0, [0, 1, 2])], None)
            assert await self.page(client, "b", cursor=("b", INT32[0])) == (
                [("b", 0, [0, 1, 2])],
                None,
            )
            assert await self.page(client, "b", cursor=("b", INT32[1])) == ([("b", 0, [])], None)


class TestAnOldImage:
    """Node 3 has not heard of what another node has answered."""

    @virtual
    async def test_the_present_replicas_decide_whether_their_number_changes(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            with deaf(cluster, 3):
                await cluster.nodes[1].admin.delete_topic("t")
                await cluster.create("t", (1, 2))
            move = ("t", 0, [2, 3])
            found = await reassign(
                client_of(cluster.nodes[3]), move, allow_replication_factor_change=False
            )
            assert codes(found) == [NONE]

    @virtual
    async def test_a_move_is_listed(self) -> None:
        async with cluster_of(Cluster(FIVE)) as cluster:
            await cluster.create("t", (1, 2))
            await cluster.kill(5)
            with deaf(cluster, 3):
                assert codes(await reassign(client_of(cluster.nodes[1]), ("t", 0, [1, 5]))) == [
                    NONE
                ]
            assert [row[:2] for row in await listed(client_of(cluster.nodes[3]))] == [("t", 0)]

    @virtual
    async def test_a_new_topic_is_described(self) -> None:
        async with cluster_of() as cluster:
            with deaf(cluster, 3):
                await cluster.create("t", (1, 2))
            rows, _ = await TestDescribe.page(client_of(cluster.nodes[3]), "t")
            assert rows == [("t", NONE, [0])]

    @virtual
    async def test_a_new_topic_gets_its_first_replica_as_leader(self) -> None:
        async with cluster_of() as cluster:
            with deaf(cluster, 3):
                await cluster.create("t", (1, 2))
                await lead(cluster, 2)
            client = client_of(cluster.nodes[3])
            assert await TestElections.elect(client, ("t", [0])) == [("t", 0, NONE)]


async def lead(cluster: Cluster, leader: int) -> None:
    """Have this in-sync replica lead topic t."""
    image = cluster.image
    topic_id = image.topic_ids["t"]
    state = image.partitions[topic_id, 0]
    change = LeaderChange(
        topic_id=topic_id,
        partition=0,
        partition_epoch=state.partition_epoch,
        leader=leader,
        isr=tuple(state.isr),
    )
    command = ElectLeaders(controller_epoch=image.controller_epoch, changes=(change,))
    await cluster.nodes[1].metadata.propose(command, timeout_ms=1_000)
