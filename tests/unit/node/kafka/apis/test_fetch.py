"""Fetch: which records a client gets, when it gets them, and what it is told of the ends."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from http_api.protocol.kafka_codes import KafkaCode
from milena.model.requests import Acks, FetchRequest, FetchResult
from storage.segments.segment import LOG_SUFFIX
from tests.support.clusters.kafka_clients import KafkaClient, client_of, clients_of
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.overtaken import quorum_of
from tests.support.clusters.transacting import to, transact
from tests.support.disk.kafka_batches import KafkaRecord, decoded, encoded, numbered
from tests.support.time.virtual_time import LoopClock, settle, virtual

VERSION = 11
COMMITTED, UNCOMMITTED = 1, 0


def batches(data: bytes) -> list[Any]:
    """The Kafka batches in a response."""
    found = []
    while data:
        size = int.from_bytes(data[8:12], "big") + 12
        found.append(decoded(data[:size]))
        data = data[size:]
    return found


def values(data: bytes) -> list[str]:
    """The records that a client hands out: those of no control batch."""
    return [
        (record.value or b"").decode()
        for batch in batches(data)
        if not batch.attributes & 1 << 5
        for record in batch.records
    ]


def position(data: bytes, start: int) -> int:
    """The next offset of a client that read this."""
    return max([start, *(b.base_offset + b.last_offset_delta + 1 for b in batches(data))])


def request(*parts: tuple[str, int, int], version: int = VERSION, **more: Any) -> dict[str, Any]:
    """Topic, partition and offset of each part."""
    return {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": COMMITTED,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": partition,
                        "fetch_offset": offset,
                        "partition_max_bytes": 1 << 20,
                        "current_leader_epoch": -1,
                    }
                ],
            }
            for topic, partition, offset in parts
        ],
    } | more


async def fetch(
    client: KafkaClient, *parts: tuple[str, int, int], version: int = VERSION, **more: Any
) -> list[Any]:
    found = await client.call(1, version, **request(*parts, version=version, **more))
    assert found.error_code == 0
    return [part for topic in found.responses for part in topic.partitions]


async def produce(client: KafkaClient, data: bytes, topic: str = "t") -> None:
    found = await client.call(
        0, 9, transactional_id=None, acks=-1, timeout_ms=1_000,
        topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": data}]}],
    )  # fmt: skip
    assert found.responses[0].partition_responses[0].error_code == 0


def leader_of(cluster: Cluster) -> int:
    topic = cluster.image.topic("t")
    assert topic is not None
    state = cluster.image.partition(topic.topic_id, 0)
    assert state is not None
    assert state.leader is not None
    return int(state.leader)


def batch(*texts: str) -> bytes:
    return encoded(numbered(*(KafkaRecord(text.encode()) for text in texts)))


@pytest.mark.parametrize("version", range(4, 19))
@virtual
async def test_records_of_both_interfaces_are_read_in_order(version: int) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = client_of(cluster.nodes[1])
        await produce(client, batch("a", "b"))
        await cluster.nodes[2].write("t", "c")
        await produce(client, batch("d"))
        named: dict[str, Any] = {}
        if version >= 13:
            topic = cluster.image.topic("t")
            assert topic is not None
            named = request(("t", 0, 0))
            named["topics"][0] = {
                "topic_id": uuid.UUID(hex=topic.topic_id),
                "partitions": named["topics"][0]["partitions"],
            }
        (part,) = await fetch(client, ("t", 0, 0), version=version, **named)
        assert values(bytes(part.records)) == ["a", "b", "c", "d"]
        assert (part.high_watermark, part.last_stable_offset) == (4, 4)
        assert [b.base_offset for b in batches(bytes(part.records))] == [0, 2, 3]


@virtual
async def test_a_batch_of_a_kafka_client_keeps_its_bytes() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,))
        client = client_of(cluster.nodes[1])
        data = batch("a", "b")
        await produce(client, data)
        (part,) = await fetch(client, ("t", 0, 1))
        assert bytes(part.records)[16:] == data[16:]


@pytest.mark.parametrize("is_of_kafka", [False, True])
@virtual
async def test_damaged_records_are_never_sent_and_are_read_from_another_copy(
    is_of_kafka: bool,
) -> None:
    """It is the copy of the leader that is damaged. Another node leads soon, and has the records."""
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = client_of(cluster.nodes[1])
        for text in "abc":
            if is_of_kafka:
                await produce(client, batch(text))
            else:
                await cluster.nodes[1].write("t", text)
        log = cluster.runner(1, "t").log
        sizes = [len(log.read_span(offset, max_bytes=1)) for offset in range(2)]
        (segment,) = log.state.table.segments
        cluster.files[1].flip_bit(segment.path(LOG_SUFFIX), sum(sizes) - 1)
        (part,) = await fetch(client, ("t", 0, 0))
        assert (part.error_code, values(bytes(part.records))) == (0, ["a"])
        (part,) = await fetch(client, ("t", 0, 1))
        assert (part.error_code, part.records) == (KafkaCode.KAFKA_STORAGE_ERROR, b"")
        attending = asyncio.create_task(cluster.nodes[1].scrubber.attend())
        await cluster.until(lambda: leader_of(cluster) != 1)
        attending.cancel()
        (part,) = await fetch(client_of(cluster.nodes[leader_of(cluster)]), ("t", 0, 1))
        assert (part.error_code, values(bytes(part.records))) == (0, ["b", "c"])


@virtual
async def test_what_cannot_be_read_has_the_code_of_kafka() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        await cluster.create("other", (2, 3))
        client = client_of(cluster.nodes[1])
        await produce(client, batch("a"))
        for code, part in (
            (3, ("missing", 0, 0)),
            (3, ("t", 1, 0)),
            (6, ("other", 0, 0)),
            (1, ("t", 0, -5)),
            (1, ("t", 0, 9)),
        ):
            (found,) = await fetch(client, part, max_wait_ms=10_000)
            assert (found.error_code, bytes(found.records)) == (code, b""), part
        (moved,) = await fetch(client, ("other", 0, 0), version=12)
        assert moved.error_code == 6
        for epoch, code in ((0, 0), (1, 75)):
            more = request(("t", 0, 0))
            more["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch
            (found,) = await fetch(client, ("t", 0, 0), **more)
            assert found.error_code == code
        unknown = request(("t", 0, 0))
        unknown["topics"][0] = {
            "topic_id": uuid.UUID(int=7),
            "partitions": unknown["topics"][0]["partitions"],
        }
        (found,) = await fetch(client, ("t", 0, 0), version=13, **unknown)
        assert found.error_code == 100


@virtual
async def test_a_consumer_of_kafka_fetches_again_if_no_leader_can_judge_its_offset() -> None:
    """At LEADER_NOT_AVAILABLE in a Fetch, Kafka's own consumer would end with an exception."""
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        client = client_of(cluster.nodes[1])
        await produce(client, batch("a"))
        quorum_of(cluster, 1)._is_reachable = lambda: False
        (part,) = await fetch(client, ("t", 0, 9))
        assert (part.error_code, bytes(part.records)) == (KafkaCode.OFFSET_NOT_AVAILABLE, b"")


@pytest.mark.parametrize("offset", [0, 9])
@virtual
async def test_a_fetch_by_id_reads_no_topic_that_was_made_again_meanwhile(
    offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (1, 2, 3))
        node = cluster.nodes[1]
        client = client_of(node)
        await produce(client, batch("former"))
        topic = cluster.image.topic("t")
        assert topic is not None
        by_id = request(("t", 0, offset))
        by_id["topics"][0] = {
            "topic_id": uuid.UUID(hex=topic.topic_id),
            "partitions": by_id["topics"][0]["partitions"],
        }
        read = node.reads.fetch

        async def late(asked: FetchRequest) -> FetchResult:
            await node.admin.delete_topic("t")
            await cluster.create("t", (1, 2, 3))
            await node.write("t", "new")
            return await read(asked)

        monkeypatch.setattr(node.reads, "fetch", late)
        (part,) = await fetch(client, ("t", 0, offset), version=13, **by_id)
        assert (part.error_code, bytes(part.records)) == (KafkaCode.UNKNOWN_TOPIC_ID, b"")


@virtual
async def test_a_former_leader_epoch_is_fenced() -> None:
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 3, 1))
        await cluster.kill(2)
        await cluster.until(lambda: cluster.is_led("t"))
        leader = next(i for i in cluster.nodes if cluster.runner(i, "t").leader is not None)
        more = request(("t", 0, 0))
        more["topics"][0]["partitions"][0]["current_leader_epoch"] = 0
        (found,) = await fetch(client_of(cluster.nodes[leader]), ("t", 0, 0), **more)
        assert found.error_code == 74


RACKS = {1: "a", 2: "b", 3: "c"}


@asynccontextmanager
async def racked(**options: Any) -> AsyncIterator[tuple[Cluster, dict[int, KafkaClient]]]:
    """Three nodes in racks, with a topic that the first one leads; and a client of each node."""
    async with (
        cluster_of(Cluster(racks=RACKS, **options)) as cluster,
        clients_of(cluster, 1, 2, 3) as clients,
    ):
        await cluster.create("t", (1, 2, 3))
        yield cluster, clients


def preferred(part: Any) -> tuple[int, int, bytes]:
    return part.error_code, part.preferred_read_replica, bytes(part.records)


@pytest.mark.parametrize("version", [11, 12, 16])
@virtual
async def test_a_client_is_sent_to_the_replica_in_its_rack_and_reads_there(version: int) -> None:
    async with racked() as (cluster, clients):
        await produce(clients[1], batch("a", "b"))
        await cluster.until(lambda: cluster.runner(2, "t").high_watermark == 2)

        async def fetched(node_id: int, offset: int, rack: str) -> Any:
            more = request(("t", 0, offset), max_wait_ms=100, rack_id=rack)
            if version >= 13:
                topic = cluster.image.topic("t")
                assert topic is not None
                more["topics"][0]["topic_id"] = uuid.UUID(hex=topic.topic_id)
            (part,) = await fetch(clients[node_id], version=version, **more)
            return part

        for rack, replica in (("b", 2), ("c", 3)):
            assert preferred(await fetched(1, 0, rack)) == (0, replica, b"")
            assert preferred(await fetched(1, 2, rack)) == (0, replica, b"")
        for rack in ("", "a", "elsewhere"):
            part = await fetched(1, 0, rack)
            assert (part.preferred_read_replica, values(bytes(part.records))) == (-1, ["a", "b"])
        followed = await fetched(2, 0, "b")
        assert (followed.error_code, followed.preferred_read_replica) == (0, -1)
        assert values(bytes(followed.records)) == ["a", "b"]
        assert (followed.high_watermark, followed.log_start_offset) == (2, 0)


@virtual
async def test_no_client_is_sent_to_a_replica_that_it_cannot_reach_or_that_is_behind() -> None:
    async with racked() as (cluster, clients):
        await produce(clients[1], batch("a"))
        leader = cluster.runner(1, "t").leader
        assert leader is not None
        leader.followers[2].stored_end = 0
        (part,) = await fetch(clients[1], ("t", 0, 1), rack_id="b")
        assert part.preferred_read_replica == -1
        leader.followers[2].stored_end = 1
        (part,) = await fetch(clients[1], ("t", 0, 1), rack_id="b")
        assert part.preferred_read_replica == 2
        await cluster.kill(2)
        await cluster.until(lambda: 2 not in leader.isr)
        (part,) = await fetch(clients[1], ("t", 0, 0), rack_id="b")
        assert (part.preferred_read_replica, values(bytes(part.records))) == (-1, ["a"])


@virtual
async def test_a_follower_serves_what_lies_below_its_own_high_watermark() -> None:
    async with racked() as (cluster, clients):
        await produce(clients[1], batch("a"))
        await cluster.until(lambda: cluster.runner(2, "t").high_watermark == 1)
        asking = asyncio.create_task(timed(fetch(clients[2], ("t", 0, 1), max_wait_ms=5_000)))
        await LoopClock().sleep(100)
        await produce(clients[1], batch("b"))
        (part,), took_ms = await asking
        assert values(bytes(part.records)) == ["b"]
        assert took_ms < 1_000
        follower = cluster.runner(2, "t")
        # The record is there, and the follower does not know that it is committed.
        follower._following.high_watermark = 1
        (found,), took_ms = await timed(fetch(clients[2], ("t", 0, 2), max_wait_ms=0))
        assert preferred(found) == (78, -1, b"")
        (beyond,) = await fetch(clients[2], ("t", 0, 3), max_wait_ms=100)
        assert preferred(beyond) == (1, -1, b"")
        (below,) = await fetch(clients[2], ("t", 0, 0))
        assert values(bytes(below.records)) == ["a"]


@virtual
async def test_a_follower_fences_epochs_and_sends_old_clients_to_the_leader() -> None:
    async with racked() as (_, clients):
        (old,) = await fetch(clients[2], ("t", 0, 0), version=10)
        assert old.error_code == 6
        for epoch, code in ((0, 0), (1, 75)):
            more = request(("t", 0, 0))
            more["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch
            (found,) = await fetch(clients[2], **more)
            assert found.error_code == code


@virtual
async def test_a_follower_that_is_cut_off_sends_its_clients_away() -> None:
    async with racked() as (cluster, clients):
        cluster.network.isolate(2)
        await cluster.until(lambda: not cluster.nodes[2].membership.has_lease)
        (part,) = await fetch(clients[2], ("t", 0, 0))
        assert part.error_code == 6


@virtual
async def test_a_reader_of_committed_records_gets_the_same_ones_from_a_follower() -> None:
    async with racked() as (cluster, clients):
        await transact(cluster, 1, to("t", 0, "a", "b"))
        await cluster.until(lambda: cluster.runner(2, "t").stable_end == 3)
        found = [(await fetch(clients[i], ("t", 0, 0)))[0] for i in (1, 2)]
        assert bytes(found[0].records) == bytes(found[1].records)
        assert [(p.high_watermark, p.last_stable_offset) for p in found] == [(3, 3)] * 2


@pytest.mark.parametrize("version", [7, 12, 13, 18])
@virtual
async def test_a_session_leaves_out_what_has_no_news(version: int) -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,))
        await cluster.create("u", (1,))
        client = client_of(cluster.nodes[1])

        def named(*parts: tuple[str, int, int]) -> dict[str, Any]:
            asked = request(*parts)
            for topic in asked["topics"] if version >= 13 else ():
                topic["topic_id"] = uuid.UUID(hex=cluster.image.topic_ids[topic.pop("topic")])
            return asked

        async def ask(epoch: int, *parts: tuple[str, int, int], session_id: int) -> Any:
            more = {"session_id": session_id, "session_epoch": epoch}
            return await client.call(1, version, **named(*parts) | more)

        opened = await ask(0, ("t", 0, 0), ("u", 0, 0), session_id=0)
        session_id = opened.session_id
        assert (opened.error_code, len(opened.responses), session_id > 0) == (0, 2, True)
        nothing = await ask(1, session_id=session_id)
        assert (nothing.error_code, nothing.responses, nothing.session_id) == (0, [], session_id)
        await produce(client, batch("a"), topic="u")
        news = await ask(2, session_id=session_id)
        (topic,) = news.responses
        assert values(bytes(topic.partitions[0].records)) == ["a"]
        moved = await ask(3, ("u", 0, 1), session_id=session_id)
        assert moved.responses == []
        refused = await ask(3, session_id=session_id)
        assert (refused.error_code, refused.session_id, refused.responses) == (71, 0, [])
        unknown = await ask(4, session_id=session_id + 1)
        assert unknown.error_code == 70
        closed = await ask(-1, ("t", 0, 0), session_id=session_id)
        assert (closed.error_code, closed.session_id, len(closed.responses)) == (0, 0, 1)
        assert (await ask(4, session_id=session_id)).error_code == 70


async def timed(asking: Any) -> tuple[Any, int]:
    began_ms = LoopClock().now_ms()
    found = await asking
    return found, LoopClock().now_ms() - began_ms


@virtual
async def test_a_fetch_waits_at_the_ends_of_all_its_partitions() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,))
        await cluster.create("u", (1,))
        client, writer = client_of(cluster.nodes[1]), client_of(cluster.nodes[1])
        parts = (("t", 0, 0), ("u", 0, 0))
        found, took_ms = await timed(fetch(client, *parts, max_wait_ms=500))
        assert [bytes(part.records) for part in found] == [b"", b""]
        assert 500 <= took_ms < 600
        asking = asyncio.create_task(timed(fetch(client, *parts, max_wait_ms=5_000)))
        await LoopClock().sleep(100)
        await produce(writer, batch("a"), "u")
        found, took_ms = await asking
        assert [values(bytes(part.records)) for part in found] == [[], ["a"]]
        assert took_ms < 1_000
        assert not any(
            type(watcher).__name__ == "EndsWait"
            for topic in ("t", "u")
            for watcher in cluster.runner(1, topic).watchers
        )


@virtual
async def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,))
        client, writer = client_of(cluster.nodes[1]), client_of(cluster.nodes[1])
        await produce(writer, batch("a"))
        asking = asyncio.create_task(
            timed(fetch(client, ("t", 0, 0), max_wait_ms=5_000, min_bytes=300))
        )
        for text in ("b", "c", "d", "e", "f"):
            await LoopClock().sleep(100)
            assert not asking.done()
            await produce(writer, batch(text))
            await settle()
            if asking.done():
                break
        (part,), took_ms = await asking
        assert 300 <= len(bytes(part.records)) < 500
        assert took_ms < 1_000
        (part,), took_ms = await timed(
            fetch(client, ("t", 0, 0), max_wait_ms=700, min_bytes=100_000)
        )
        assert values(bytes(part.records))[0] == "a"
        assert took_ms >= 700


@virtual
async def test_a_client_that_leaves_waits_for_nothing() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,))
        client = client_of(cluster.nodes[1])
        asking = asyncio.create_task(fetch(client, ("t", 0, 0), max_wait_ms=100_000))
        await settle()
        assert len(cluster.runner(1, "t").watchers) == 1
        client.transport.abort()
        await settle()
        assert not cluster.runner(1, "t").watchers
        asking.cancel()


@virtual
async def test_a_response_has_at_most_the_bytes_that_were_asked_for_and_one_batch_at_least() -> (
    None
):
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,))
        await cluster.create("u", (1,))
        client = client_of(cluster.nodes[1])
        for topic in ("t", "u"):
            for text in ("a" * 1_000, "b" * 1_000):
                await produce(client, batch(text), topic)
        first, second = await fetch(client, ("t", 0, 0), ("u", 0, 0), max_bytes=1)
        assert len(values(bytes(first.records))) == 1
        assert bytes(second.records) == b""
        assert second.high_watermark == 2
        first, second = await fetch(client, ("t", 0, 0), ("u", 0, 0), max_bytes=2_400)
        assert [len(values(bytes(p.records))) for p in (first, second)] == [2, 0]


@virtual
async def test_committed_readers_pass_over_markers_and_aborted_records() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await cluster.create("t", (1,))
        node = cluster.nodes[1]
        await transact(cluster, 1, to("t", 0, "a", "b"))
        client = client_of(node)
        (part,) = await fetch(client, ("t", 0, 0))
        data = bytes(part.records)
        assert values(data) == ["a", "b"]
        # The marker lies at offset 2: the position is behind it, or the client would ask for it again and again.
        assert part.last_stable_offset == part.high_watermark == 3
        assert position(data, 0) == 3
        (behind,) = await fetch(client, ("t", 0, 2))
        assert values(bytes(behind.records)) == []
        assert position(bytes(behind.records), 2) == 3
        await node.write("t", "c", acks=Acks.ALL)
        (part,) = await fetch(client, ("t", 0, 0))
        assert values(bytes(part.records)) == ["a", "b", "c"]
        assert not any(b.attributes & 1 << 5 for b in batches(bytes(part.records)))
        (part,) = await fetch(client, ("t", 0, 0), isolation_level=UNCOMMITTED)
        assert values(bytes(part.records)) == ["a", "b", "c"]
