"""OffsetCommit, OffsetFetch and OffsetDelete, as a client sends them to a group's coordinator."""

import uuid
from typing import Any

import pytest

from http_api.protocol.kafka_codes import KafkaCode
from tests.support.clusters.kafka_clients import KafkaClient
from tests.support.clusters.nodes import cluster_of
from tests.support.time.virtual_time import virtual
from tests.unit.node.kafka.apis.test_groups import coordinator, join, sync


async def commit(
    client: KafkaClient, *rows: tuple[str, int, int], version: int = 9, **more: Any
) -> list[int]:
    """Commit (topic, partition, offset); the codes."""
    fields = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time_ms": -1,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": partition,
                        "committed_offset": offset,
                        "committed_leader_epoch": 3,
                        "committed_metadata": "note",
                    }
                ],
            }
            for topic, partition, offset in rows
        ],
    } | more
    found = await client.call(8, version, **fields)
    return [one.error_code for topic in found.topics for one in topic.partitions]


async def fetch(
    client: KafkaClient, topics: dict[str, list[int]] | None, version: int = 9
) -> dict[tuple[str, int], tuple[int, str]]:
    """Committed offset and metadata of each partition."""
    rows = topics and [{"name": name, "partition_indexes": parts} for name, parts in topics.items()]
    if version >= 8:
        group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": rows}
        (found,) = (await client.call(9, version, groups=[group], require_stable=True)).groups
    else:
        found = await client.call(9, version, group_id="g", topics=rows, require_stable=True)
    assert version < 2 or found.error_code == 0
    return {
        (topic.name, one.partition_index): (one.committed_offset, one.metadata)
        for topic in found.topics
        for one in topic.partitions
    }


@pytest.mark.parametrize(
    ("commits", "fetches"), [(2, 1), (3, 2), (5, 3), (6, 5), (7, 6), (8, 7), (9, 8), (9, 9)]
)
@virtual
async def test_offsets_come_back_in_every_version(commits: int, fetches: int) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = await coordinator(cluster)
        assert await commit(client, ("t", 0, 7), version=commits) == [0]
        assert await fetch(client, {"t": [0, 5]}, fetches) == {
            ("t", 0): (7, "note"),
            ("t", 5): (-1, ""),
        }
        if fetches >= 2:
            assert await fetch(client, None, fetches) == {("t", 0): (7, "note")}


@virtual
async def test_topics_are_named_by_their_ids_in_version_10() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = await coordinator(cluster)
        ids = [uuid.UUID(hex=cluster.image.topic_ids["t"]), uuid.uuid4()]
        row = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1}
        rows = [{"topic_id": one, "partitions": [row]} for one in ids]
        assert await commit(client, version=10, topics=rows) == [0, KafkaCode.UNKNOWN_TOPIC_ID]
        asked = [{"topic_id": one, "partition_indexes": [0]} for one in ids]
        for topics, expected in (
            (asked, [(ids[0], 0, 7), (ids[1], KafkaCode.UNKNOWN_TOPIC_ID, -1)]),
            (None, [(ids[0], 0, 7)]),
        ):
            group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": topics}
            (found,) = (await client.call(9, 10, groups=[group], require_stable=True)).groups
            told = [
                (topic.topic_id, one.error_code, one.committed_offset)
                for topic in found.topics
                for one in topic.partitions
            ]
            assert (found.error_code, told) == (0, expected)


@virtual
async def test_a_client_that_only_commits_may_send_a_member_id() -> None:
    # librdkafka makes itself one before it joins.
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = await coordinator(cluster)
        assert await commit(client, ("t", 0, 3), member_id="made-up") == [0]
        joined = await join(client, version=3)
        await sync(client, joined, rows=[(joined.member_id, b"a")])
        refused = await commit(client, ("t", 0, 4), member_id="made-up")
        assert refused == [KafkaCode.UNKNOWN_MEMBER_ID]


@virtual
async def test_a_partition_that_cannot_be_refuses_itself_alone() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = await coordinator(cluster)
        codes = await commit(client, ("t", 0, 1), ("t", 9, 1), ("none", 0, -1))
        missing = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [0, missing, missing]
        long = [
            {
                "name": "t",
                "partitions": [
                    {
                        "partition_index": 0,
                        "committed_offset": 1,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "x" * 4_097,
                    }
                ],
            }
        ]
        assert await commit(client, topics=long) == [KafkaCode.OFFSET_METADATA_TOO_LARGE]
        assert await commit(client, ("t", 0, 1), group_id="") == [KafkaCode.INVALID_GROUP_ID]


@virtual
async def test_a_member_commits_in_its_generation_only() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = await coordinator(cluster)
        joined = await join(client, version=3)
        await sync(client, joined, rows=[(joined.member_id, b"a")])
        member = {"member_id": joined.member_id}
        now = joined.generation_id
        assert await commit(client, ("t", 0, 3), generation_id_or_member_epoch=now, **member) == [0]
        stale = await commit(client, ("t", 0, 4), generation_id_or_member_epoch=now + 1, **member)
        assert stale == [KafkaCode.ILLEGAL_GENERATION]
        assert await commit(client, ("t", 0, 5)) == [KafkaCode.UNKNOWN_MEMBER_ID]
        assert await fetch(client, {"t": [0]}) == {("t", 0): (3, "note")}


@virtual
async def test_a_negative_offset_takes_the_committed_one_back() -> None:
    """kafkajs resets a group by the offsets -2 (earliest) and -1 (latest); its consumers take both as none."""
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3), (1, 2, 3))
        client = await coordinator(cluster)
        assert await commit(client, ("t", 0, -2)) == [0]
        assert await commit(client, ("t", 0, 3), ("t", 1, 4)) == [0, 0]
        joined = await join(client, version=3)
        await sync(client, joined, rows=[(joined.member_id, b"a")])
        member = {"member_id": joined.member_id}
        now = joined.generation_id
        rows = ("t", 0, -2), ("t", 1, 5)
        stale = await commit(client, *rows, generation_id_or_member_epoch=now + 1, **member)
        assert stale == [KafkaCode.ILLEGAL_GENERATION] * 2
        assert await fetch(client, None) == {("t", 0): (3, "note"), ("t", 1): (4, "note")}
        assert await commit(client, *rows, generation_id_or_member_epoch=now, **member) == [0, 0]
        assert await fetch(client, {"t": [0, 1]}) == {("t", 0): (-1, ""), ("t", 1): (5, "note")}


@virtual
async def test_single_offsets_are_deleted() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = await coordinator(cluster)

        async def delete(*names: str) -> tuple[int, list[int]]:
            rows = [{"name": name, "partitions": [{"partition_index": 0}]} for name in names]
            found = await client.call(47, 0, group_id="g", topics=rows)
            codes = [one.error_code for topic in found.topics for one in topic.partitions]
            return found.error_code, codes

        assert await delete("t") == (KafkaCode.GROUP_ID_NOT_FOUND, [])
        assert await commit(client, ("t", 0, 3)) == [0]
        assert await delete("t", "none") == (0, [0, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION])
        assert await fetch(client, None) == {}
