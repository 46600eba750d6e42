"""Produce: what is stored, which codes clients get, and the order of batches."""

import asyncio
import uuid
from typing import Any

import pytest

from http_api.protocol.kafka_codes import KafkaCode
from milena.model.types import Codec
from node.kafka.apis.items import NO_ID
from node.kafka.apis.producers import APIS as PRODUCER_APIS
from node.kafka.refused_batches import KEPT_MS
from node.kafka.wire import cold
from tests.support.clusters.kafka_clients import KafkaClient, client_of, decoded
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.overtaken import deaf
from tests.support.disk.kafka_batches import KafkaRecord, encoded, numbered
from tests.support.time.virtual_time import settle, virtual

VERSION = 9


def batch(*values: str, producer: tuple[int, int, int] = (-1, -1, -1), **head: Any) -> bytes:
    rows = numbered(*(KafkaRecord(value.encode(), key=value.encode()) for value in values))
    return encoded(rows, producer=producer, **head)


def fields(
    records: bytes | None, *, topic: str = "t", partition: int = 0, acks: int = -1, **more: Any
) -> Any:
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 1_000,
        "topic_data": [
            {"name": topic, "partition_data": [{"index": partition, "records": records}]}
        ],
    } | more


async def produce(
    client: KafkaClient, records: bytes | None, *, version: int = VERSION, **more: Any
) -> Any:
    """The response of the one partition."""
    asked = fields(records, **more)
    if version >= 13:
        (topic,) = asked["topic_data"]
        wanted = [{"topic_id": NO_ID, "name": topic.pop("name")}]
        metadata = await client.call(3, 12, topics=wanted, allow_auto_topic_creation=False)
        topic["topic_id"] = metadata.topics[0].topic_id or uuid.uuid4()
    found = await client.call(0, version, **asked)
    return found.responses[0].partition_responses[0]


async def producer_of(client: KafkaClient) -> tuple[int, int]:
    made = await client.call(22, 4, transactional_id=None, transaction_timeout_ms=1)
    assert made.error_code == 0
    return made.producer_id, made.producer_epoch


@pytest.mark.parametrize("version", range(3, 14))
@virtual
async def test_records_are_stored_and_readable_everywhere(version: int) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = client_of(cluster.nodes[1])
        for expected, values in ((0, ("a", "b")), (2, ("c",))):
            row = await produce(client, batch(*values), version=version)
            assert (row.index, row.error_code, row.base_offset) == (0, 0, expected)
            assert row.log_append_time_ms == -1
        await cluster.until(lambda: cluster.runner(3, "t").high_watermark == 3)
        for node in cluster.nodes.values():
            assert await node.read("t", is_local=True) == ["a", "b", "c"]


@virtual
async def test_an_id_that_no_topic_has_is_unknown() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = client_of(cluster.nodes[1])
        row = await produce(client, batch("a"), version=13, topic="none")
        assert row.error_code == KafkaCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@virtual
async def test_large_compressed_batches_are_checked_beside_the_loop(codec: Codec) -> None:
    import random  # noqa: PLC0415 - what does not compress

    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,))
        value = random.Random(1).randbytes(300_000)
        data = encoded([KafkaRecord(value)], attributes=int(codec))
        assert (await produce(client_of(cluster.nodes[1]), data)).error_code == 0


@virtual
async def test_a_node_that_does_not_lead_names_the_leader() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 3, 1))
        client = client_of(cluster.nodes[1])
        assert (await produce(client, batch("a"))).error_code == 6
        row = await produce(client, batch("a"), version=11)
        assert row.error_code == 6
        assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (2, 0)
        assert cluster.runner(2, "t").log.log_end_offset == 0


@virtual
async def test_what_cannot_be_stored_has_the_code_of_kafka() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3), max_message_bytes="100000")
        await cluster.create("compacted", (1, 2, 3), cleanup_policy="compact")
        await cluster.create("strict", (1, 2, 3), min_insync_replicas="3")
        client = client_of(cluster.nodes[1])
        good = batch("a")
        spoiled = good[:-1] + bytes([good[-1] ^ 1])
        keyless = encoded(numbered(KafkaRecord(b"v", key=b"k"), KafkaRecord(b"v")))
        future = encoded([KafkaRecord(b"v", time=10**12)])
        for code, records, more in (
            (3, good, {"topic": "missing"}),
            (3, good, {"partition": 1}),
            (3, good, {"partition": -1}),
            (29, good, {"topic": "__audit"}),
            (2, spoiled, {}),
            (2, good[:-5], {}),
            (87, good + good, {}),
            (87, None, {}),
            (87, b"", {}),
            (87, batch("a", attributes=1 << 5), {}),
            (87, keyless, {"topic": "compacted"}),
            (32, future, {}),
            (10, batch("a" * 100_000), {}),
            (21, good, {"acks": 2}),
            (48, good, {"transactional_id": "tx"}),
            (48, batch("a", attributes=1 << 4, producer=(1, 0, 0)), {}),
        ):
            row = await produce(client, records, **more)
            assert (row.error_code, row.base_offset) == (code, -1), (code, more)
        blamed = await produce(client, keyless, topic="compacted")
        assert [error.batch_index for error in blamed.record_errors] == [1]
        assert "has no key" in blamed.error_message
        # A client may send the others again, so each record without a key is named.
        several = encoded(
            numbered(*(KafkaRecord(b"v", key=key) for key in (None, b"k", None, b"k", None)))
        )
        blamed = await produce(client, several, topic="compacted")
        assert [error.batch_index for error in blamed.record_errors] == [0, 2, 4]
        cluster.isolate(3)
        await cluster.until(
            lambda: (
                len(
                    cluster.nodes[1]
                    .replicas.find(cluster.image.topic("strict").topic_id, 0)
                    .leader.isr
                )
                < 3
            )
        )  # type: ignore[union-attr]  # it is there
        assert (await produce(client, good, topic="strict")).error_code == 19
        cluster.heal()
        assert cluster.runner(1, "t").log.log_end_offset == 0


@virtual
async def test_old_versions_are_refused_with_a_code() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = client_of(cluster.nodes[1])
        # Without the transactional id, version 3 is the layout of those before.
        client.ask(0, 2, cold.encode_request(0, 3, fields(batch("a")))[2:])
        await client.connection.idle()
        ((_, body),) = client.answers()
        found = decoded(0, 2, body)
        assert found.responses[0].partition_responses[0].error_code == 35


@virtual
async def test_no_batch_is_stored_below_its_feature_level() -> None:
    async with cluster_of(Cluster(node_ids=(1,), feature_max=11)) as cluster:
        await cluster.create("t", (1,))
        assert (await produce(client_of(cluster.nodes[1]), batch("a"))).error_code == 43
        assert cluster.runner(1, "t").log.log_end_offset == 0


@virtual
async def test_a_producer_with_sequences_gets_the_codes_of_kafka() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = client_of(cluster.nodes[1])
        producer_id, epoch = await producer_of(client)

        async def write(
            value: str, sequence: int, *, epoch: int = epoch, number: int = producer_id
        ) -> tuple[int, int]:
            row = await produce(client, batch(value, producer=(number, epoch, sequence)))
            return row.error_code, row.base_offset

        assert await write("a", 0) == (0, 0)
        assert await write("a", 0) == (0, 0)
        assert await write("gap", 2) == (45, -1)
        for sequence in range(1, 8):
            assert await write(f"{sequence}", sequence) == (0, sequence)
        assert await write("a", 0) == (46, -1)
        # A client raises the epoch by itself (KIP-360).
        assert await write("next", 0, epoch=epoch + 1) == (0, 8)
        assert await write("former", 8) == (47, -1)
        assert await write("stranger", 0, number=producer_id + 1_000_000) == (59, -1)
        assert cluster.runner(1, "t").log.log_end_offset == 9


@virtual
async def test_a_producer_goes_on_after_its_topic_was_deleted_and_created_again() -> None:
    async with cluster_of() as cluster:
        client = client_of(cluster.nodes[1])
        producer_id, epoch = await producer_of(client)

        async def write(value: str, sequence: int) -> tuple[int, int]:
            row = await produce(client, batch(value, producer=(producer_id, epoch, sequence)))
            return row.error_code, row.base_offset

        await cluster.create("t", (1, 2, 3))
        assert [await write(f"{n}", n) for n in range(3)] == [(0, n) for n in range(3)]
        await cluster.nodes[1].admin.delete_topic("t")
        await cluster.create("t", (1, 2, 3))
        assert await write("3", 3) == (0, 0)
        assert await write("3", 3) == (0, 0)
        assert await write("4", 4) == (0, 1)
        assert await write("gap", 6) == (45, -1)
        # A client takes 46 for success, but this batch is not in the new log.
        assert await write("2", 2) == (45, -1)


@virtual
async def test_batches_behind_a_refused_one_wait_for_it_at_an_unknown_producer() -> None:
    """A client sends several batches at once. If the leader takes over between them, they must keep their order."""
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1, 3))
        client = client_of(cluster.nodes[1])
        producer_id, epoch = await producer_of(client)

        async def write(sequence: int) -> int:
            records = batch(f"{sequence}", producer=(producer_id, epoch, sequence))
            return int((await produce(client, records)).error_code)

        assert await write(0) == 6
        await cluster.kill(2)
        await cluster.until(lambda: cluster.leader_of("t") == 1 and cluster.is_led("t"))
        assert await write(1) == 45
        assert [await write(0), await write(1)] == [0, 0]
        await cluster.until(lambda: cluster.runner(1, "t").high_watermark == 2)
        assert await cluster.nodes[1].read("t", is_local=True) == ["0", "1"]


@virtual
async def test_a_batch_that_its_client_gave_up_blocks_the_next_ones_for_a_while_only() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 1, 3))
        client = client_of(cluster.nodes[1])
        producer_id, epoch = await producer_of(client)
        assert (await produce(client, batch("a", producer=(producer_id, epoch, 0)))).error_code == 6
        await cluster.kill(2)
        await cluster.until(lambda: cluster.leader_of("t") == 1 and cluster.is_led("t"))
        late = batch("b", producer=(producer_id, epoch, 1))
        assert (await produce(client, late)).error_code == 45
        await asyncio.sleep((KEPT_MS + 1) / 1000)
        assert (await produce(client, late)).error_code == 0


@virtual
async def test_requests_are_appended_in_their_order_without_waiting() -> None:
    async with cluster_of(Cluster(disk_delay_ms=lambda rng: rng.uniform(1, 20))) as cluster:
        await cluster.create("t", (1, 2, 3))
        client = client_of(cluster.nodes[1])
        producer_id, epoch = await producer_of(client)
        sent = [
            client.ask(
                0, VERSION,
                cold.encode_request(0, VERSION, fields(batch(f"{n}", producer=(producer_id, epoch, n)))),
            )
            for n in range(20)
        ]  # fmt: skip
        await settle(3)
        assert cluster.runner(1, "t").log.log_end_offset > 1, "they do not wait for each other"
        await client.connection.idle()
        found = client.answers()
        assert [correlation_id for correlation_id, _ in found] == sent
        offsets = [
            decoded(0, VERSION, body).responses[0].partition_responses[0].base_offset
            for _, body in found
        ]
        assert offsets == list(range(20))


@virtual
async def test_a_request_without_acknowledgement_has_no_response_and_ends_badly_or_not_at_all() -> (
    None
):
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = client_of(cluster.nodes[1])
        client.ask(0, VERSION, cold.encode_request(0, VERSION, fields(batch("a"), acks=0)))
        await client.connection.idle()
        assert client.answers() == []
        assert not client.transport.is_aborted
        assert cluster.runner(1, "t").log.log_end_offset == 1
        client.ask(0, VERSION, cold.encode_request(0, VERSION, fields(b"bad", acks=0)))
        await client.connection.idle()
        await settle()
        assert client.transport.is_aborted
        assert client.answers() == []


@virtual
async def test_a_fate_that_is_unknown_is_a_timeout() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = client_of(cluster.nodes[1])
        cluster.network.cut(1, 2)
        cluster.network.cut(1, 3)
        asking = asyncio.create_task(produce(client, batch("a"), timeout_ms=50))
        row = await asking
        assert (row.error_code, row.base_offset) == (7, -1)
        cluster.heal()


@virtual
async def test_the_leaders_time_is_told_where_readers_see_it() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,), message_timestamp_type="LogAppendTime")
        row = await produce(client_of(cluster.nodes[1]), batch("a"))
        assert row.error_code == 0
        assert row.log_append_time_ms > 0


@virtual
async def test_ids_are_not_given_twice() -> None:
    assert [api.key for api in PRODUCER_APIS] == [22]
    async with cluster_of() as cluster:
        client = client_of(cluster.nodes[2])
        assert await producer_of(client) != await producer_of(client)


@virtual
async def test_settings_that_another_node_has_changed_refuse_nothing() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (3, 1, 2), max_message_bytes="1024")
        with deaf(cluster, 3):
            change = {"max.message.bytes": "99999"}
            await cluster.nodes[1].admin.alter_configs("t", change, is_validate_only=False)
        row = await produce(client_of(cluster.nodes[3]), batch("x" * 3_000))
        assert (row.error_code, row.base_offset) == (0, 0)
