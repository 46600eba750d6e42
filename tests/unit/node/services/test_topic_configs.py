"""Every topic config takes effect while the topic is used: no node is restarted, no log is opened anew."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from milena.model.batch.decode import check_batch, iterate_batches, timestamps_of
from milena.model.batch.decode import decode_columns as columns_of
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns
from milena.model.errors import InvalidRecordError, NotEnoughReplicasError, RequestTooLargeError
from milena.model.requests import (
    Acks,
    ProduceReceipt,
    ProduceRequest,
    Records,
    TransactionWrite,
)
from milena.model.types import Codec, TimestampType
from tests.support.clusters.nodes import Cluster, cluster_of, outcome
from tests.support.clusters.transacting import transact
from tests.support.time.virtual_time import LoopClock, after, virtual

DAY_MS = 24 * 3_600_000


async def alter(cluster: Cluster, node_id: int = 2, **changes: object) -> None:
    """Alter ``t`` on a node, and wait until every node knows; None resets."""
    named = {
        name.replace("_", "."): None if value is None else str(value)
        for name, value in changes.items()
    }
    await cluster.nodes[node_id].admin.alter_configs("t", named, is_validate_only=False)
    index = cluster.nodes[node_id].metadata.image.index
    await cluster.until(
        lambda: all(node.metadata.image.index >= index for node in cluster.nodes.values())
    )


async def write_stamped(cluster: Cluster, ahead_ms: int) -> list[ProduceReceipt]:
    """One record, as far ahead of the clock as that, in a batch of its own."""
    request = ProduceRequest(
        topic="t",
        records=Records(
            keys=None, values=[b"x" * 20_000], timestamps=[LoopClock().wall_ms() + ahead_ms]
        ),
        acks=Acks.ALL,
        timeout_ms=2_000,
        partition=0,
    )
    return list(await cluster.nodes[1].produce.produce(request))


async def write_aged(cluster: Cluster, age_ms: int, count: int) -> None:
    """Records of so many batches, each as old as that."""
    for _ in range(count):
        await write_stamped(cluster, -age_ms)


def starts(cluster: Cluster) -> list[int]:
    return [cluster.runner(i, "t").log.log_start_offset for i in sorted(cluster.nodes)]


@virtual
async def test_retention_ms() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3), segment_bytes="65536")
        await write_aged(cluster, DAY_MS, 8)
        assert starts(cluster) == [0, 0, 0]
        await alter(cluster, retention_ms=DAY_MS // 2)
        await after(300)  # not a whole round of housekeeping
        assert starts(cluster) == [8, 8, 8]


@virtual
async def test_retention_bytes() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3), segment_bytes="65536")
        await write_aged(cluster, 0, 8)
        await alter(cluster, retention_bytes=65_536)
        await after(300)
        assert starts(cluster) == [3, 3, 3]


@virtual
async def test_segment_bytes() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        await write_aged(cluster, 0, 4)
        assert len(cluster.runner(1, "t").log.state.table.segments) == 1
        await alter(cluster, segment_bytes=65_536)
        await write_aged(cluster, 0, 4)
        assert [len(cluster.runner(i, "t").log.state.table.segments) for i in (1, 2, 3)] == [
            3,
            3,
            3,
        ]


@virtual
async def test_max_message_bytes() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        large = "x" * 2_000
        await alter(cluster, max_message_bytes=1_024)
        for node_id in (1, 2, 3):
            found = await outcome(cluster.nodes[node_id].write("t", large))
            assert isinstance(found, RequestTooLargeError)
        await alter(cluster, max_message_bytes=None)
        assert await outcome(cluster.nodes[3].write("t", large)) == [0]


@virtual
async def test_min_insync_replicas() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        await cluster.kill(3)
        await cluster.until(lambda: cluster.isr_of("t") == (1, 2))
        assert await outcome(cluster.nodes[2].write("t", "a")) == [0]
        await alter(cluster, min_insync_replicas=3)
        assert isinstance(await outcome(cluster.nodes[2].write("t", "b")), NotEnoughReplicasError)
        await alter(cluster, min_insync_replicas=None)
        assert await outcome(cluster.nodes[2].write("t", "b")) == [1]


@virtual
async def test_compression_type_of_records_that_a_node_encodes() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        codecs = []
        for codec in (None, "gzip", "zstd", "lz4", "uncompressed", "producer"):
            await alter(cluster, compression_type=codec)
            offset = (await cluster.nodes[3].write("t", "x" * 500))[0].offset
            batch = (await cluster.nodes[1].fetch("t", offset or 0)).batches
            codecs.append(check_batch(batch).codec)
        assert codecs == [Codec.NONE, Codec.GZIP, Codec.ZSTD, Codec.LZ4, Codec.NONE, Codec.NONE]


@virtual
async def test_compression_type_of_batches_that_a_client_encoded() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        columns = RecordColumns(
            offset_deltas=None, timestamp_deltas=None, keys=None, values=[b"v" * 500], headers=None
        )
        now_ms = LoopClock().wall_ms()
        sent = encode_batch(columns, base_timestamp_ms=now_ms, codec=Codec.GZIP)
        stored = []
        for codec in ("producer", "zstd", "uncompressed", None):
            await alter(cluster, compression_type=codec)
            receipt = await cluster.nodes[2].produce.produce_batch(
                "t", 0, sent, acks=Acks.ALL, timeout_ms=2_000
            )
            offset = receipt.base_offset or 0
            # A follower learns a moment later than the leader that it is committed.
            batch = (await cluster.nodes[3].fetch("t", offset, timeout_ms=1_000)).batches
            header = check_batch(batch)
            stored.append(header.codec)
            assert columns_of(batch, header).values == [b"v" * 500]
        assert stored == [Codec.GZIP, Codec.ZSTD, Codec.NONE, Codec.GZIP]


@virtual
async def test_message_timestamp_type() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        seen = []
        for kind in ("CreateTime", "LogAppendTime", None):
            await alter(cluster, message_timestamp_type=kind)
            await write_aged(cluster, DAY_MS, 1)
        data = (await cluster.nodes[1].fetch("t", 0)).batches
        for position, header in iterate_batches(data):
            stamps = timestamps_of(header, columns_of(data, header, position))
            is_aged = LoopClock().wall_ms() - stamps[0] >= DAY_MS
            seen.append((header.timestamp_type, is_aged))
        assert seen == [
            (TimestampType.CREATE, True),
            (TimestampType.APPEND, False),
            (TimestampType.CREATE, True),
        ]


async def told_times(cluster: Cluster, node_id: int, *stamps: int | None) -> Sequence[int | None]:
    """The times that receipts tell of a record for each stamp, written through a node."""
    receipts = await cluster.nodes[node_id].produce.produce(
        ProduceRequest(
            topic="t",
            records=Records(keys=None, values=[b"x"] * len(stamps), timestamps=[*stamps]),
            acks=Acks.ALL,
            timeout_ms=2_000,
            partition=0,
            wants_times=True,
        )
    )
    return [receipt.timestamp_ms for receipt in receipts]


@virtual
async def test_receipts_tell_the_times_that_readers_get() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        told: list[int | None] = []
        for kind in ("CreateTime", "LogAppendTime"):
            await alter(cluster, message_timestamp_type=kind)
            # Node 1 leads, from node 2 on they are forwarded; stamped records go alone, others with others.
            for node_id in (1, 2):
                told += await told_times(cluster, node_id, 1_000, 3_000, None)
                told += await told_times(cluster, node_id, None)
                both = (told_times(cluster, node_id, None), told_times(cluster, node_id, None))
                for times in await asyncio.gather(*both):
                    told += times
        assert None not in told
        data = (await cluster.nodes[1].fetch("t", 0)).batches
        read: list[int] = []
        for position, header in iterate_batches(data):
            read += timestamps_of(header, columns_of(data, header, position))
        assert read == told
        assert told.count(1_000) == told.count(3_000) == 2, "only where records keep their own"


@virtual
async def test_a_time_far_ahead_is_refused_where_readers_would_see_it() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        assert isinstance(await outcome(write_stamped(cluster, DAY_MS)), InvalidRecordError)
        await alter(cluster, message_timestamp_type="LogAppendTime")
        assert await outcome(write_stamped(cluster, DAY_MS)) == [0]
        data = (await cluster.nodes[1].fetch("t", 0)).batches
        assert check_batch(data).latest_timestamp_ms <= LoopClock().wall_ms()


async def in_a_request(cluster: Cluster, timestamp_ms: int) -> object:
    records = Records(keys=None, values=[b"x"], timestamps=[timestamp_ms])
    request = ProduceRequest(
        topic="t", records=records, acks=Acks.ALL, timeout_ms=2_000, partition=0
    )
    return (await cluster.nodes[2].produce.produce(request))[0].error


async def in_an_encoded_batch(cluster: Cluster, timestamp_ms: int) -> object:
    columns = RecordColumns(None, None, None, [b"x"], None)
    batch = encode_batch(columns, base_timestamp_ms=timestamp_ms)
    try:
        await cluster.nodes[2].produce.produce_batch("t", 0, batch, acks=Acks.ALL, timeout_ms=2_000)
    except InvalidRecordError as error:
        return error
    return None


async def in_a_transaction(cluster: Cluster, timestamp_ms: int) -> object:
    records = Records(keys=None, values=[b"x"], timestamps=[timestamp_ms])
    try:
        await transact(cluster, 2, TransactionWrite(topic="t", partition=0, records=records))
    except InvalidRecordError as error:
        return error
    return None


async def in_a_session(cluster: Cluster, timestamp_ms: int) -> object:
    node = cluster.nodes[2]
    one = await node.transactions.begin("me", timeout_ms=60_000)
    records = Records(keys=None, values=[b"x"], timestamps=[timestamp_ms])
    request = ProduceRequest(
        topic="t",
        records=records,
        acks=Acks.ALL,
        timeout_ms=2_000,
        partition=0,
        transaction=one,
    )
    return (await node.produce.produce(request))[0].error


@pytest.mark.parametrize(
    "send", [in_a_request, in_an_encoded_batch, in_a_transaction, in_a_session]
)
@virtual
async def test_message_timestamp_before_and_after_max_ms(
    send: Callable[[Cluster, int], Awaitable[object]],
) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        now_ms = LoopClock().wall_ms()
        seconds = now_ms // 1_000
        assert await send(cluster, seconds) is None, "as in Kafka, whose default takes any time"
        assert isinstance(await send(cluster, now_ms + DAY_MS), InvalidRecordError)
        await alter(
            cluster,
            message_timestamp_before_max_ms=DAY_MS,
            message_timestamp_after_max_ms=2 * DAY_MS,
        )
        assert await send(cluster, now_ms - DAY_MS + 60_000) is None
        assert await send(cluster, now_ms + 2 * DAY_MS - 60_000) is None
        refused = await send(cluster, now_ms - DAY_MS - 60_000)
        assert "before.max.ms=86400000" in str(refused)
        assert "after.max.ms=172800000" in str(await send(cluster, now_ms + 2 * DAY_MS + 60_000))
        assert "it looks like seconds: send milliseconds" in str(await send(cluster, seconds))
        for unit, factor in (("microseconds", 1_000), ("nanoseconds", 1_000_000)):
            assert f"it looks like {unit}" in str(await send(cluster, now_ms * factor))
        await alter(cluster, message_timestamp_type="LogAppendTime")
        assert await send(cluster, seconds) is None, "no reader sees it"


def unsynced(cluster: Cluster) -> list[int]:
    logs = [cluster.runner(i, "t").log for i in sorted(cluster.nodes)]
    return [log.log_end_offset - log.flushing.synced_end for log in logs]


@virtual
async def test_flush_messages() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        await alter(cluster, flush_messages=1_000)
        assert await outcome(cluster.nodes[1].write("t", "a", "b")) == [0, 1]
        assert unsynced(cluster) == [2, 2, 2], "acknowledged before any disk has it"
        await alter(cluster, flush_messages=1)
        await after(300)
        assert unsynced(cluster) == [0, 0, 0]
        assert await outcome(cluster.nodes[1].write("t", "c")) == [2]
        assert unsynced(cluster) == [0, 0, 0]


@virtual
async def test_flush_ms() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3), flush_messages="1000")
        await cluster.nodes[1].write("t", "a")
        await after(700)
        assert unsynced(cluster) == [1, 1, 1]
        await alter(cluster, flush_ms=100)
        await after(500)
        assert unsynced(cluster) == [0, 0, 0]


@virtual
async def test_index_interval_bytes_from_the_next_segment_on() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3), segment_bytes="65536", index_interval_bytes="512")
        await write_aged(cluster, 0, 3)
        await alter(cluster, index_interval_bytes=1 << 24)
        await write_aged(cluster, 0, 3)
        segments = cluster.runner(1, "t").log.state.table.segments
        indexes = [segment._index for segment in segments]
        assert [None if index is None else len(index) for index in indexes] == [3, 1]


@virtual
async def test_unclean_leader_election_enable() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2), min_insync_replicas="1")
        await cluster.kill(2)
        await cluster.until(lambda: cluster.isr_of("t") == (1,))
        await cluster.nodes[1].write("t", "a")
        await cluster.kill(1)
        await cluster.restart(2)
        await after(15_000)
        assert cluster.leader_of("t") is None
        await alter(cluster, 3, unclean_leader_election_enable="true")
        await cluster.until(lambda: cluster.leader_of("t") == 2)


@virtual
async def test_a_bad_value_changes_nothing() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3), retention_ms="5000")
        with pytest.raises(Exception, match=r"retention\.bytes must be"):
            await alter(cluster, retention_ms=1, retention_bytes="many")
        topic = cluster.image.topic("t")
        assert topic is not None
        assert dict(topic.configs) == {"retention.ms": "5000"}
