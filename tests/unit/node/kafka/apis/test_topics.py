"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords: each item of a request succeeds or fails by itself."""

import uuid
from typing import Any

import pytest

from node.kafka.apis import topics
from raft_meta.machine.codec import LEVELS
from raft_meta.machine.commands import NoteAction
from raft_meta.machine.topics.configs import KEYS
from tests.support.clusters.kafka_clients import KafkaClient, client_of
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.overtaken import deaf
from tests.support.clusters.runners import values_of
from tests.support.time.virtual_time import current_loop, virtual

NONE, OUT_OF_RANGE, UNKNOWN, TIMED_OUT, BAD_NAME = 0, 1, 3, 7, 17
EXISTS, BAD_PARTITIONS, BAD_FACTOR, BAD_ASSIGNMENT, BAD_CONFIG, BAD_REQUEST = 36, 37, 38, 39, 40, 42
UNKNOWN_ID = 100
INT32 = (-(1 << 31), (1 << 31) - 1)
INT16 = (-(1 << 15), (1 << 15) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)


def new(name: str, partitions: int = -1, replicas: int = -1, **fields: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, **fields}


def assigned(*replicas: list[int]) -> list[dict[str, Any]]:
    return [{"partition_index": p, "broker_ids": ids} for p, ids in enumerate(replicas)]


def configured(**values: str | None) -> list[dict[str, Any]]:
    return [{"name": name.replace("_", "."), "value": value} for name, value in values.items()]


async def create(
    client: KafkaClient, *wanted: dict[str, Any], version: int = 7, **fields: Any
) -> Any:
    return (
        await client.call(19, version, topics=list(wanted), **({"timeout_ms": 5_000} | fields))
    ).topics


async def codes(client: KafkaClient, *wanted: dict[str, Any], **fields: Any) -> list[int]:
    return [row.error_code for row in await create(client, *wanted, **fields)]


class TestCreate:
    @pytest.mark.parametrize("version", range(2, 8))
    @virtual
    async def test_a_topic_is_there_on_the_node_that_answers(self, version: int) -> None:
        async with cluster_of() as cluster:
            (row,) = await create(client_of(cluster.nodes[2]), new("t", 2, 3), version=version)
            assert (row.name, row.error_code, row.error_message) == ("t", NONE, None)
            topic = cluster.nodes[2].metadata.image.topic("t")
            assert topic is not None
            assert (topic.partition_count, topic.replication_factor) == (2, 3)

    @virtual
    async def test_the_answer_has_numbers_id_and_every_config(self) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            (row,) = await create(client, new("t", configs=configured(retention_ms="1000")))
            topic = cluster.image.topic("t")
            assert topic is not None
            assert (row.num_partitions, row.replication_factor) == (1, 3)
            assert row.topic_id == uuid.UUID(hex=topic.topic_id)
            found = {
                c.name: (c.value, c.config_source, c.read_only, c.is_sensitive) for c in row.configs
            }
            assert found["retention.ms"] == ("1000", 1, False, False)
            assert found["min.insync.replicas"] == ("2", 5, False, False)
            assert len(found) == len(KEYS)

    @virtual
    async def test_each_topic_fails_by_itself(self) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            await create(client, new("old"))
            rows = await create(
                client,
                new("a"),
                new("old"),
                new("a/b"),
                new("twice"),
                new("b"),
                new("twice"),
                new(""),
            )
            assert [(row.name, row.error_code) for row in rows] == [
                ("a", NONE),
                ("old", EXISTS),
                ("a/b", BAD_NAME),
                ("twice", BAD_REQUEST),
                ("b", NONE),
                ("", BAD_NAME),
            ]
            assert rows[1].error_message == "Topic 'old' already exists."
            assert (rows[1].topic_id, rows[1].num_partitions, rows[1].configs) == (None, -1, [])
            assert sorted(cluster.image.topic_ids) == ["a", "b", "old"]
            assert cluster.nodes[1].counts.kafka.requests[("CreateTopics", EXISTS)] == 1

    @virtual
    async def test_validation_alone_changes_nothing(self) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            count = len(cluster.log.commands)
            rows = await create(client, new("t", 4), new("u", 0), validate_only=True)
            assert [row.error_code for row in rows] == [NONE, BAD_PARTITIONS]
            assert (rows[0].num_partitions, rows[0].topic_id) == (4, None)
            assert len(cluster.log.commands) == count

    @virtual
    async def test_brokers_of_partitions_may_be_named(self) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            assert await codes(client, new("t", assignments=assigned([3, 1], [2, 3]))) == [NONE]
            topic = cluster.image.topic("t")
            assert topic is not None
            placed = [cluster.image.partitions[topic.topic_id, p].replicas for p in (0, 1)]
            assert placed == [(3, 1), (2, 3)]
            gap = [{"partition_index": 1, "broker_ids": [1]}]
            same = [*assigned([1]), *assigned([2])]
            for assignments in (
                gap,
                same,
                assigned([]),
                assigned([9]),
                assigned([1, 1]),
                assigned([1], [1, 2]),
            ):
                assert await codes(client, new("u", assignments=assignments)) == [BAD_ASSIGNMENT]
            for partitions, replicas in ((1, -1), (-1, 1), (1, 1)):
                wanted = new("u", partitions, replicas, assignments=assigned([1]))
                assert await codes(client, wanted) == [BAD_REQUEST]
            for number in (*INT32, -1):
                odd = [{"partition_index": number, "broker_ids": [1]}]
                assert await codes(client, new("u", assignments=odd)) == [BAD_ASSIGNMENT]
                assert await codes(client, new("u", assignments=assigned([number]))) == [
                    BAD_ASSIGNMENT
                ]

    @virtual
    async def test_numbers_at_the_ends_of_their_fields_are_refused_with_their_code(self) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            for partitions in (0, -2, 1_001, *INT32):
                assert await codes(client, new("t", partitions)) == [BAD_PARTITIONS]
            for replicas in (0, -2, 4, *INT16):
                assert await codes(client, new("t", 1, replicas)) == [BAD_FACTOR]
            assert cluster.image.topic("t") is None

    @virtual
    async def test_configs_that_cannot_be_set_are_refused(self) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            for configs in (
                configured(no_such="1"),
                configured(retention_ms="soon"),
                configured(retention_ms=None),
                configured(retention_ms="9" * 30_000),
                [{"name": "\u2028" * 10_000, "value": ""}],
            ):
                for version in (2, 7):
                    (row,) = await create(client, new("t", configs=configs), version=version)
                    assert row.error_code == BAD_CONFIG
                    assert len(row.error_message) <= 2_000
            assert cluster.image.topic("t") is None

    @virtual
    async def test_names_at_the_ends_of_their_field_are_refused(self) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            names = ["", ".", "..", "a" * 250, "a" * 32_767, "\u20ac" * 10_000, "a\0b"]
            for version in (2, 7):
                rows = await create(client, *map(new, names), version=version)
                assert [(row.name, row.error_code) for row in rows] == [
                    (n, BAD_NAME) for n in names
                ]

    @virtual
    async def test_an_unreachable_majority_is_waited_for_until_the_timeout(self) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            await cluster.kill(2)
            await cluster.kill(3)
            for asked_ms, waited_ms in ((1_500, 1_500), (0, 500), (INT32[0], 500)):
                began = current_loop().time()
                rows = await create(client, new("t"), new("u"), timeout_ms=asked_ms)
                assert [row.error_code for row in rows] == [TIMED_OUT, TIMED_OUT]
                assert "may yet happen" in rows[0].error_message
                assert waited_ms <= round((current_loop().time() - began) * 1_000) < waited_ms + 200

    @virtual
    async def test_a_client_that_does_not_wait_has_its_topic(self) -> None:
        async with cluster_of() as cluster:
            assert await codes(client_of(cluster.nodes[1]), new("t"), timeout_ms=0) == [NONE]

    @virtual
    async def test_only_the_first_topics_of_many_have_their_configs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(topics, "CONFIGS_SHOWN_MAX", 1)
        async with cluster_of() as cluster:
            rows = await create(client_of(cluster.nodes[1]), new("a"), new("b"), validate_only=True)
            assert [(len(row.configs or ()), row.topic_config_error_code) for row in rows] == [
                (len(KEYS), 0),
                (0, 42),
            ]
            assert rows[1].configs is None

    @virtual
    async def test_a_request_of_too_many_topics_is_refused(self) -> None:
        async with cluster_of(Cluster(node_ids=(1,))) as cluster:
            wanted = [new(f"{number}") for number in range(10_001)]
            rows = await create(client_of(cluster.nodes[1]), *wanted)
            assert {row.error_code for row in rows} == {BAD_REQUEST}
            assert not cluster.image.topics

    @virtual
    async def test_more_topics_than_are_made_side_by_side(self) -> None:
        async with cluster_of(Cluster(node_ids=(1,))) as cluster:
            found = await codes(client_of(cluster.nodes[1]), *(new(f"t{n}") for n in range(120)))
            assert found == [NONE] * 120
            assert len(cluster.image.topics) == 120


class TestDelete:
    @pytest.mark.parametrize("version", range(1, 6))
    @virtual
    async def test_topics_are_deleted_by_name(self, version: int) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            await create(client, new("a"), new("b"), new("c"))
            names = ["a", "no", "b", "c", "c", ""]
            found = await client.call(20, version, topic_names=names, timeout_ms=5_000)
            assert [(row.name, row.error_code) for row in found.responses] == [
                ("a", NONE),
                ("no", UNKNOWN),
                ("b", NONE),
                ("c", BAD_REQUEST),
                ("", UNKNOWN),
            ]
            assert list(cluster.image.topic_ids) == ["c"]
            if version == 5:
                assert found.responses[1].error_message == "topic 'no' does not exist"

    @virtual
    async def test_topics_are_deleted_by_id(self) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            ids = [row.topic_id for row in await create(client, new("a"), new("b"))]
            unknown = uuid.UUID(int=7)
            wanted = [
                {"name": None, "topic_id": ids[0]},
                {"name": "b", "topic_id": topics.NO_ID},
                {"name": None, "topic_id": unknown},
                {"name": "a", "topic_id": ids[0]},
                {"name": None, "topic_id": topics.NO_ID},
            ]
            found = await client.call(20, 6, topics=wanted, timeout_ms=5_000)
            assert [(row.name, row.topic_id, row.error_code) for row in found.responses] == [
                ("a", ids[0], NONE),
                ("b", ids[1], NONE),
                (None, unknown, UNKNOWN_ID),
                ("a", ids[0], BAD_REQUEST),
                (None, None, BAD_REQUEST),
            ]
            assert not cluster.image.topics

    @virtual
    async def test_a_topic_that_this_node_has_not_seen_is_deleted_by_its_id(self) -> None:
        async with cluster_of() as cluster:
            cluster.nodes[2].quorum.is_stopped = True
            (row,) = await create(client_of(cluster.nodes[1]), new("a"))
            cluster.nodes[2].quorum.is_stopped = False
            wanted = [{"name": None, "topic_id": row.topic_id}]
            found = await client_of(cluster.nodes[2]).call(20, 6, topics=wanted, timeout_ms=5_000)
            assert [(row.name, row.error_code) for row in found.responses] == [("a", NONE)]

    @virtual
    async def test_a_long_name_is_quoted_in_part(self) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            found = await client.call(20, 5, topic_names=["\u2028" * 10_000], timeout_ms=5_000)
            assert len(found.responses[0].error_message) == 2_000


class TestCreatePartitions:
    @pytest.mark.parametrize("version", range(4))
    @virtual
    async def test_each_topic_grows_or_fails_by_itself(self, version: int) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            await create(client, new("a", 2, 2), new("b", 2, 2), new("c", 1, 1), new("twice"))
            wanted = [
                {"name": "a", "count": 4, "assignments": None},
                {"name": "b", "count": 3, "assignments": [{"broker_ids": [3, 1]}]},
                {"name": "c", "count": 1, "assignments": None},
                {"name": "no", "count": 2, "assignments": None},
                {"name": "twice", "count": 2, "assignments": None},
                {"name": "twice", "count": 3, "assignments": None},
            ]
            found = await client.call(37, version, topics=wanted, timeout_ms=5_000)
            assert [(row.name, row.error_code) for row in found.results] == [
                ("a", NONE),
                ("b", NONE),
                ("c", BAD_PARTITIONS),
                ("no", UNKNOWN),
                ("twice", BAD_REQUEST),
            ]
            assert "has 1 partitions already" in found.results[2].error_message
            counts = {topic.name: topic.partition_count for topic in cluster.image.topics.values()}
            assert counts == {"a": 4, "b": 3, "c": 1, "twice": 1}
            b = cluster.image.topic("b")
            assert b is not None
            assert cluster.image.partitions[b.topic_id, 2].replicas == (3, 1)

    @virtual
    async def test_what_cannot_be_is_refused_with_its_code(self) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            await create(client, new("t", 2, 2))

            async def code(count: int, assignments: list[list[int]] | None) -> int:
                lists = None if assignments is None else [{"broker_ids": b} for b in assignments]
                wanted = [{"name": "t", "count": count, "assignments": lists}]
                found = await client.call(37, 1, topics=wanted, timeout_ms=5_000)
                result: int = found.results[0].error_code
                return result

            for count in (*INT32, 0, -1, 1, 2, 10_001):
                assert await code(count, None) == BAD_PARTITIONS
            for assignments in (
                [],
                [[]],
                [[1]],
                [[1, 2, 3]],
                [[1, 1]],
                [[1, 9]],
                [[1, 2], [1, 2]],
                [list(INT32)],
            ):
                assert await code(3, assignments) == BAD_ASSIGNMENT
            topic = cluster.image.topic("t")
            assert topic is not None
            assert topic.partition_count == 2

    @virtual
    async def test_validation_alone_changes_nothing(self) -> None:
        async with cluster_of() as cluster:
            client = client_of(cluster.nodes[1])
            await create(client, new("t"))
            count = len(cluster.log.commands)
            wanted = [{"name": "t", "count": 3, "assignments": None}]
            found = await client.call(37, 3, topics=wanted, timeout_ms=5_000, validate_only=True)
            assert found.results[0].error_code == NONE
            assert len(cluster.log.commands) == count


class TestDeleteRecords:
    @pytest.mark.parametrize("version", range(3))
    @virtual
    async def test_any_node_deletes_up_to_an_offset_or_all(self, version: int) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), (2, 3, 1))
            for partition in (0, 1):
                await cluster.nodes[1].write("t", "a", "b", "c", partition=partition)
            parts = [{"partition_index": 0, "offset": 2}, {"partition_index": 1, "offset": -1}]
            wanted = [{"name": "t", "partitions": parts}]
            found = await client_of(cluster.nodes[1]).call(
                21, version, topics=wanted, timeout_ms=5_000
            )
            (topic,) = found.topics
            assert [
                (p.partition_index, p.low_watermark, p.error_code) for p in topic.partitions
            ] == [
                (0, 2, NONE),
                (1, 3, NONE),
            ]
            left = await cluster.nodes[1].fetch("t", "earliest")
            assert (left.log_start_offset, values_of(left.batches)[-1]) == (2, "c")

    @virtual
    async def test_each_partition_fails_by_itself(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", *[(1, 2, 3)] * 5)
            await cluster.nodes[1].write("t", "a", "b", "c")
            numbers = [
                (1, 4),
                (2, -2),
                (3, INT64[0]),
                (4, INT64[1]),
                (5, 0),
                (INT32[0], 0),
                (INT32[1], 0),
                (0, 1),
            ]
            wanted = [
                {
                    "name": "t",
                    "partitions": [{"partition_index": p, "offset": o} for p, o in numbers],
                },
                {"name": "no", "partitions": [{"partition_index": 0, "offset": 0}]},
                {"name": "", "partitions": []},
            ]
            found = await client_of(cluster.nodes[1]).call(21, 2, topics=wanted, timeout_ms=5_000)
            assert [topic.name for topic in found.topics] == ["t", "no"]
            rows = found.topics[0].partitions
            assert [(p.partition_index, p.low_watermark, p.error_code) for p in rows] == [
                *((p, -1, OUT_OF_RANGE) for p in range(1, 5)),
                *((p, -1, UNKNOWN) for p in (5, *INT32)),
                (0, 1, NONE),
            ]
            assert found.topics[1].partitions[0].error_code == UNKNOWN

    @virtual
    async def test_the_longest_name_of_a_topic_is_unknown_as_any_other(self) -> None:
        async with cluster_of() as cluster:
            await cluster.until(lambda: cluster.image.feature_level >= LEVELS[NoteAction])
            parts = [{"partition_index": 0, "offset": 0}]
            wanted = [{"name": "\x01" * 32_767, "partitions": parts}]
            found = await client_of(cluster.nodes[1]).call(21, 1, topics=wanted, timeout_ms=5_000)
            assert found.topics[0].partitions[0].error_code == UNKNOWN

    @virtual
    async def test_a_partition_without_a_leader_is_waited_for_until_the_timeout(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (2,))
            await cluster.kill(2)
            await cluster.until(lambda: cluster.image.brokers[2].is_fenced)
            wanted = [{"name": "t", "partitions": [{"partition_index": 0, "offset": -1}]}]
            found = await client_of(cluster.nodes[1]).call(21, 2, topics=wanted, timeout_ms=700)
            assert found.topics[0].partitions[0].error_code in {5, TIMED_OUT}


@virtual
async def test_a_topic_that_was_created_again_grows() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2), (1, 2), (1, 2))
        with deaf(cluster, 3):
            await cluster.nodes[1].admin.delete_topic("t")
            await cluster.create("t", (1, 2))
        wanted = [{"name": "t", "count": 2, "assignments": None}]
        client = client_of(cluster.nodes[3])
        found = await client.call(37, 3, topics=wanted, timeout_ms=5_000)
        assert [row.error_code for row in found.results] == [NONE]
