"""Quotas: the response tells the client to wait, and the node does not read from it meanwhile."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from milena.model.quotas import QuotaKey
from tests.support.clusters.kafka_clients import (
    ADMIN,
    KafkaClient,
    close_cluster,
    listener_of,
    plain,
    request_frame,
    sign_in,
)
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.disk.kafka_batches import KafkaRecord, encoded
from tests.support.time.virtual_time import after, settle, virtual

DESCRIBE_CLUSTER = b"\0\0\0"


async def limited(node: SimNode, limits: Mapping[QuotaKey, int]) -> list[KafkaClient]:
    """Two connections of one user with these quotas."""
    await close_cluster(node)
    await node.access.alter_quota("admin", "", limits)
    listener = listener_of(node)
    clients = [KafkaClient(listener.connection()) for _ in range(2)]
    for client in clients:
        assert (await sign_in(client, plain(*ADMIN))).error_code == 0
    return clients


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def described(client: KafkaClient) -> int:
    found: Any = await client.call(60, 0)
    return int(found.throttle_time_ms)


async def produced(client: KafkaClient, size: int) -> int:
    part = {"index": 0, "records": encoded([KafkaRecord(bytes(size))])}
    found = await client.call(
        0, 9, transactional_id=None, acks=-1, timeout_ms=1_000,
        topic_data=[{"name": "t", "partition_data": [part]}],
    )  # fmt: skip
    assert found.responses[0].partition_responses[0].error_code == 0
    return int(found.throttle_time_ms)


async def fetched(client: KafkaClient) -> tuple[int, int]:
    """The bytes of the records, and the time to wait."""
    part = {
        "partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
    }  # fmt: skip
    found = await client.call(
        1, 11, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=0,
        topics=[{"topic": "t", "partitions": [part]}],
    )  # fmt: skip
    (row,) = found.responses[0].partitions
    return len(row.records or b""), int(found.throttle_time_ms)


@virtual
async def test_above_the_rate_of_requests_the_client_is_told_to_wait_and_is_not_read() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client, other = await limited(cluster.nodes[1], {QuotaKey.REQUEST_RATE: 2})
        assert [await described(client) for _ in range(4)] == [0, 0, 0, 0]
        assert not client.transport.is_paused
        assert 450 <= await described(client) <= 500
        assert client.transport.is_paused
        # Another connection of the user has no use of its own: its request waits.
        began_s = now_s()
        await described(other)
        assert 0.4 <= now_s() - began_s <= 0.5
        await after(600)
        assert not client.transport.is_paused


@virtual
async def test_a_timer_that_fires_a_little_early_ends_the_wait_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The timers of uvloop do: they count whole milliseconds of a clock that it reads once a turn."""
    loop = asyncio.get_running_loop()
    call_at = loop.call_at
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client, _ = await limited(cluster.nodes[1], {QuotaKey.REQUEST_RATE: 2})
        monkeypatch.setattr(loop, "call_at", lambda when, *a, **k: call_at(when - 0.001, *a, **k))
        while not client.transport.is_paused:
            await described(client)
        await after(600)
        assert not client.transport.is_paused


@virtual
async def test_a_longer_wait_replaces_a_shorter_one() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client, _ = await limited(cluster.nodes[1], {QuotaKey.REQUEST_RATE: 2})
        for wait_s in (0.1, 0.5, 0.2):
            client.connection._mute(wait_s)
        await after(400)
        assert client.transport.is_paused
        await after(200)
        assert not client.transport.is_paused
        client.connection._mute(0.1)
        client.connection.force_close()
        await after(200)


@virtual
async def test_requests_that_have_arrived_already_wait_as_well() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client, _ = await limited(cluster.nodes[1], {QuotaKey.REQUEST_RATE: 2})
        began_s = now_s()
        client.connection.data_received(b"".join(_frame(number) for number in range(8)))
        await client.connection.idle()
        assert [number for number, _ in client.answers()] == list(range(8))
        assert 1.4 <= now_s() - began_s <= 1.6


def _frame(number: int) -> bytes:
    return request_frame(60, 0, DESCRIBE_CLUSTER, correlation_id=number)


@virtual
async def test_rates_of_bytes_slow_down_produce_and_fetch_alone() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,))
        limits = {QuotaKey.PRODUCER_BYTE_RATE: 10_000, QuotaKey.CONSUMER_BYTE_RATE: 5_000}
        client, other = await limited(cluster.nodes[1], limits)
        assert await produced(client, 5_000) == 0
        assert 1_400 <= await produced(client, 30_000) <= 1_700
        assert await described(other) == 0
        one_batch, wait_ms = await fetched(other)
        assert (one_batch < 5_100, wait_ms) == (True, 0)
        await after(2_000)
        # The second batch is larger than the quota of two seconds, so the response has the first one alone.
        assert await fetched(other) == (one_batch, 0)


@virtual
async def test_a_fetch_returns_at_least_one_batch_and_is_paid_for_afterwards() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,))
        client, _ = await limited(cluster.nodes[1], {QuotaKey.CONSUMER_BYTE_RATE: 5_000})
        assert await produced(client, 50_000) == 0
        size, wait_ms = await fetched(client)
        assert size > 50_000
        assert 7_900 <= wait_ms <= 8_200
        assert client.transport.is_paused


@virtual
async def test_connections_above_the_quota_are_closed_at_their_first_request() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        first, second = await limited(cluster.nodes[1], {QuotaKey.CONNECTION_COUNT: 1})
        assert await described(first) == 0
        second.ask(60, 0, DESCRIBE_CLUSTER)
        await second.connection.idle()
        await settle()
        assert second.transport.is_aborted
        assert await described(first) == 0
