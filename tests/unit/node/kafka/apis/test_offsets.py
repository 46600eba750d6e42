"""ListOffsets and OffsetForLeaderEpoch: the ends of a partition, and searches by time and by epoch."""

import asyncio
from typing import Any

import pytest

from http_api.protocol.kafka_codes import KafkaCode
from milena.model.batch.header import HEADER_BYTES
from storage.segments.segment import LOG_SUFFIX
from tests.support.clusters.kafka_clients import KafkaClient, client_of
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.disk.kafka_batches import NOW_MS, KafkaRecord, encoded, numbered
from tests.support.time.virtual_time import virtual


async def offset(
    client: KafkaClient, timestamp: int, *, version: int = 6, topic: str = "t", **more: Any
) -> tuple[int, int, int]:
    """Code, offset and timestamp."""
    part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1} | more
    found = await client.call(
        2,
        version,
        replica_id=-1,
        isolation_level=1,
        topics=[{"name": topic, "partitions": [part]}],
    )
    ((row,),) = [one.partitions for one in found.topics]
    return row.error_code, row.offset, row.timestamp


async def produce(client: KafkaClient, *times: int) -> None:
    data = encoded(numbered(*(KafkaRecord(b"v", time=time) for time in times)))
    found = await client.call(
        0, 9, transactional_id=None, acks=-1, timeout_ms=1_000,
        topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": data}]}],
    )  # fmt: skip
    assert found.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("version", range(1, 12))
@virtual
async def test_ends_and_times(version: int) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = client_of(cluster.nodes[1])
        assert await offset(client, -1, version=version) == (0, 0, -1)
        await produce(client, 0, 10)
        await produce(client, 20)
        for timestamp, expected in (
            (-2, (0, 0, -1)),
            (-1, (0, 3, -1)),
            (0, (0, 0, NOW_MS)),
            (NOW_MS + 5, (0, 1, NOW_MS + 10)),
            (NOW_MS + 20, (0, 2, NOW_MS + 20)),
            (NOW_MS + 21, (0, -1, -1)),
        ):
            assert await offset(client, timestamp, version=version) == expected


@virtual
async def test_a_search_that_meets_damaged_records_is_to_be_repeated() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = client_of(cluster.nodes[1])
        await produce(client, 0, 10)
        (segment,) = cluster.runner(1, "t").log.state.table.segments
        cluster.files[1].flip_bit(segment.path(LOG_SUFFIX), HEADER_BYTES)
        for timestamp in (NOW_MS, NOW_MS + 5, -3):
            found = await offset(client, timestamp, version=7)
            assert found == (KafkaCode.LEADER_NOT_AVAILABLE, -1, -1)
        attending = asyncio.create_task(cluster.nodes[1].scrubber.attend())
        await cluster.until(lambda: cluster.leader_of("t") != 1)
        attending.cancel()
        leader = cluster.leader_of("t")
        assert leader is not None
        assert await offset(client_of(cluster.nodes[leader]), NOW_MS + 5) == (0, 1, NOW_MS + 10)


@virtual
async def test_the_greatest_time_has_the_first_record_of_that_time() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = client_of(cluster.nodes[1])
        assert await offset(client, -3, version=7) == (0, -1, -1)
        await produce(client, 0, 30, 10)
        await produce(client, 30, 20)
        assert await offset(client, -3, version=7) == (0, 1, NOW_MS + 30)


@pytest.mark.parametrize(
    ("timestamp", "first", "place"), [(-3, 7, 1), (-4, 8, 0), (-5, 9, -1), (-6, 11, -1)]
)
@virtual
async def test_places_by_name_are_found_from_their_version_on(
    timestamp: int, first: int, place: int
) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = client_of(cluster.nodes[1])
        await produce(client, 0, 10)
        for version in range(1, 12):
            code, found, _ = await offset(client, timestamp, version=version)
            expected = (0, place) if version >= first else (KafkaCode.UNSUPPORTED_VERSION, -1)
            assert (code, found) == expected, version
        assert (await offset(client, -7, version=11))[0] == KafkaCode.UNSUPPORTED_VERSION


@virtual
async def test_only_the_leader_answers_and_it_knows_its_epoch() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        assert (await offset(client_of(cluster.nodes[2]), -1))[0] == 6
        client = client_of(cluster.nodes[1])
        assert (await offset(client, -1, topic="missing"))[0] == 3
        assert (await offset(client, -1, partition_index=4))[0] == 3
        assert (await offset(client, -1, current_leader_epoch=3))[0] == 75
        assert cluster.nodes[1].counts.kafka.requests["ListOffsets", 75] == 1


async def epoch_end(
    client: KafkaClient, epoch: int, *, current: int = -1, version: int = 4
) -> tuple[int, int, int]:
    part = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": current}
    found = await client.call(
        23, version, replica_id=-1, topics=[{"topic": "t", "partitions": [part]}]
    )
    ((row,),) = [one.partitions for one in found.topics]
    return row.error_code, row.leader_epoch, row.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
@virtual
async def test_where_an_epoch_ended(version: int) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 3, 1))
        await produce(client_of(cluster.nodes[2]), 0, 1)
        await cluster.kill(2)
        await cluster.until(lambda: cluster.is_led("t"))
        leader = next(i for i in cluster.nodes if cluster.runner(i, "t").leader is not None)
        client = client_of(cluster.nodes[leader])
        await produce(client, 2)
        now = cluster.runner(leader, "t").leader_epoch
        assert now > 0
        assert await epoch_end(client, 0, version=version) == (0, 0, 2)
        assert await epoch_end(client, now, version=version) == (0, now, 3)
        assert (await epoch_end(client, now, current=0, version=version))[0] == 74


@virtual
async def test_an_epoch_that_never_was_has_no_end() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,))
        assert await epoch_end(client_of(cluster.nodes[1]), 0) == (0, -1, -1)


@virtual
async def test_a_large_request_and_its_response_take_a_thread_and_the_loop_goes_on() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,))
        client = client_of(cluster.nodes[1])
        services = client.connection._context.services
        pool, work = services.pool, list[object]()
        submit = pool.submit

        def noted(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            work.append(fn)
            return submit(fn, *args, **kwargs)

        pool.submit = noted  # type: ignore[method-assign]
        for count, threads in ((100, 0), (5_000, 2)):
            part = {"current_leader_epoch": -1, "timestamp": -2}
            parts = [part | {"partition_index": number} for number in range(count)]
            found = await client.call(
                2, 5, replica_id=-1, isolation_level=0, topics=[{"name": "t", "partitions": parts}]
            )
            (topic,) = found.topics
            assert [row.error_code for row in topic.partitions] == [0] + [3] * (count - 1)
            assert len(work) == threads
        # A frame whose items are empty.
        client.ask(2, 5, bytes(5) + (40_000).to_bytes(4, "big") + bytes(6) * 40_000)
        await client.connection.idle()
        assert client.transport.is_aborted
