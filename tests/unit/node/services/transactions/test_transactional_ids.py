"""Transactions of Kafka clients amid changes of leaders, silent nodes, and requests that come late or twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from milena.model.batch.header import decode_header
from milena.model.errors import (
    InvalidProducerError,
    MilenaError,
    NotReadyError,
    StaleProducerEpochError,
    TransactionAbortedError,
    TransactionNotFoundError,
)
from milena.model.requests import Acks
from node.kafka.batches import in_transaction, stored
from node.metadata.topic_settings import topic_settings
from node.services.messages import OpenTransactionAnswer
from node.services.transactions import transactional_ids
from node.services.transactions.transactional_ids import KafkaProducer, TransactionalIds
from raft_meta.machine import commands as c
from raft_meta.machine.image import PartitionKey, TransactionExtent
from storage.state.transactions import Identity
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.clusters.transacting import read
from tests.support.disk.kafka_batches import KafkaRecord, encoded, numbered
from tests.support.time.virtual_time import virtual

if TYPE_CHECKING:
    from node.services.transactions.lookup import TransactionLookup

NAME = "tx"


class Writer:
    """A client of the services of a cluster, without a connection."""

    def __init__(self, cluster: Cluster, client: KafkaProducer) -> None:
        self.cluster = cluster
        self.client = client
        self.sequences: dict[str, int] = {}

    def at(self, node_id: int) -> TransactionalIds:
        return self.cluster.nodes[node_id].transactional_ids

    def key(self, topic: str = "t") -> PartitionKey:
        return self.cluster.image.topic_ids[topic], 0

    async def enlist(self, *topics: str, node_id: int = 1) -> None:
        await self.at(node_id).enlist(NAME, self.client, [self.key(topic) for topic in topics])

    async def write(self, *values: str, topic: str = "t", node_id: int | None = None) -> None:
        """Write at the leader, or at a node that believes to lead."""
        leader = self.cluster.leader_of(topic) if node_id is None else node_id
        assert leader is not None
        node = self.cluster.nodes[leader]
        found = node.metadata.image.topic(topic)
        assert found is not None
        sequence = self.sequences.get(topic, 0)
        rows = numbered(*(KafkaRecord(value.encode()) for value in values))
        sent = encoded(rows, producer=(*self.client, sequence), attributes=0x10)
        batch, header = await stored(
            memoryview(sent),
            topic_settings(found),
            now_ms=node.clock.wall_ms(),
            is_in_transaction=True,
        )
        transaction = await node.transactional_ids.transaction_of(
            NAME, self.client, self.key(topic)
        )
        batch, header = in_transaction(batch, header, transaction)
        assert decode_header(batch).client is not None
        await node.produce.to_leader.append_led(
            found, 0, batch, header, acks=Acks.ALL, timeout_ms=2_000
        )
        self.sequences[topic] = sequence + len(values)

    async def end(self, *, is_commit: bool = True, node_id: int = 1) -> KafkaProducer:
        return await self.at(node_id).end(NAME, self.client, is_commit=is_commit)


@asynccontextmanager
async def writers() -> AsyncIterator[tuple[Cluster, Writer]]:
    """A cluster with two topics that nodes 2 and 3 lead, and a client that has begun."""
    async with cluster_of() as cluster:
        await cluster.create("t", (2, 3, 1))
        await cluster.create("u", (3, 2, 1))
        client = await cluster.nodes[1].transactional_ids.begin(
            NAME, timeout_ms=60_000, client=None
        )
        yield cluster, Writer(cluster, client)


async def settled(cluster: Cluster) -> None:
    await cluster.until(
        lambda: (
            not cluster.image.ending
            and not any(
                runner.log.writers.transactions.open
                for node in cluster.nodes.values()
                for runner in node.replicas
            )
        )
    )


@virtual
async def test_each_leader_knows_of_an_enlistment_before_it_is_answered() -> None:
    async with writers() as (cluster, tx):
        await tx.enlist("t", "u")
        index = cluster.nodes[1].metadata.image.transactional_ids[NAME].version
        for node_id in (2, 3):
            assert cluster.nodes[node_id].metadata.image.index >= index


@virtual
async def test_an_enlistment_waits_for_a_leader_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its image may still have an earlier transaction of the client open, and take the records into that."""
    monkeypatch.setattr(transactional_ids, "LEADERS_MS", 300)
    async with writers() as (_, tx):
        asked: list[int] = []

        async def ask(
            peers: object, broker_id: int, call: object, request: object, *, timeout_ms: float
        ) -> object:
            del peers, call, request, timeout_ms
            asked.append(broker_id)
            if broker_id == 2:
                raise NotReadyError("silent")
            return None

        monkeypatch.setattr(transactional_ids, "ask", ask)
        with pytest.raises(NotReadyError, match="2"):
            await tx.enlist("t", "u")
        assert asked.count(2) > 1
        assert asked.count(3) == 1


@virtual
async def test_a_leader_that_is_behind_does_not_take_records_into_an_ended_transaction() -> None:
    """The client is answered only when the leader knows its second transaction."""
    async with writers() as (cluster, tx):
        await tx.enlist("t")
        await tx.write("a")
        await tx.end()
        await tx.enlist("t")
        await tx.write("b")
        await tx.end(is_commit=False)
        await tx.enlist("t")
        await tx.write("c")
        await tx.end()
        await settled(cluster)
        assert await read(cluster, 1, "t") == ["a", "c"]


@virtual
async def test_ends_at_many_nodes_decide_once() -> None:
    async with writers() as (cluster, tx):
        await tx.enlist("t", "u")
        await tx.write("a")
        await tx.write("b", topic="u")
        found = await asyncio.gather(
            *(tx.end(is_commit=n != 2, node_id=n) for n in (1, 2, 3)), return_exceptions=True
        )
        row = cluster.image.transactional_ids[NAME]
        for node_id, answer in zip((1, 2, 3), found, strict=True):
            is_right = (node_id != 2) is (row.last == "committed")
            assert (answer == tx.client) is is_right
            assert is_right or isinstance(
                answer, TransactionNotFoundError | TransactionAbortedError
            )
        await settled(cluster)
        wanted = (["a"], ["b"]) if row.last == "committed" else ([], [])
        assert (await read(cluster, 1, "t"), await read(cluster, 1, "u")) == wanted


@virtual
async def test_what_is_enlisted_while_the_commit_is_made_is_not_missed() -> None:
    async with writers() as (cluster, tx):
        await tx.enlist("t")
        await tx.write("a")
        lookup: TransactionLookup = tx.at(1)._lookup
        ask = lookup.extent

        async def extent(*args: object, **options: object) -> object:
            found = await ask(*args, **options)  # type: ignore[arg-type]
            if "u" not in tx.sequences:
                await tx.enlist("u", node_id=3)
                await tx.write("b", topic="u")
            return found

        lookup.extent = extent  # type: ignore[method-assign,assignment]
        assert await tx.end() == tx.client
        await settled(cluster)
        assert await read(cluster, 1, "u") == ["b"]


@virtual
async def test_a_leader_change_while_the_commit_is_made_loses_nothing() -> None:
    """The former leader reports nothing, because it never had the records of its successor."""
    async with writers() as (cluster, tx):
        await tx.enlist("t")
        cluster.isolate(2)
        await cluster.until(lambda: cluster.leader_of("t") in (1, 3))
        await tx.write("a")
        cluster.heal()
        assert await tx.end(node_id=3) == tx.client
        await settled(cluster)
        assert await read(cluster, 1, "t") == ["a"]


@virtual
async def test_a_former_leader_without_the_records_does_not_hide_them() -> None:
    """It does not know its successor. The commit would not name the partition, so no leader epoch would show it."""
    async with writers() as (cluster, tx):
        await tx.enlist("t")
        await tx.write("a")
        lookup: TransactionLookup = tx.at(1)._lookup
        ask = lookup.extent
        asked: list[bool] = []

        async def extent(
            extent: TransactionExtent, identity: Identity, *, is_bound: bool
        ) -> OpenTransactionAnswer:
            asked.append(is_bound)
            if len(asked) == 1:
                return OpenTransactionAnswer(end_offset=-1, records=0, leader_epoch=0)
            return await ask(extent, identity, is_bound=is_bound)

        lookup.extent = extent  # type: ignore[method-assign]
        assert await tx.end() == tx.client
        assert asked == [True, False, True]
        await settled(cluster)
        assert await read(cluster, 1, "t") == ["a"]


@virtual
async def test_a_leader_that_changed_after_its_answer_is_asked_again() -> None:
    """The answer of the former leader lacks what its successor has acknowledged since then."""
    async with writers() as (cluster, tx):
        await tx.enlist("t")
        await tx.write("a")
        lookup: TransactionLookup = tx.at(1)._lookup
        ask = lookup.extent
        found: list[int] = []

        async def extent(
            extent: TransactionExtent, identity: Identity, *, is_bound: bool
        ) -> OpenTransactionAnswer:
            answer = await ask(extent, identity, is_bound=is_bound)
            found.append(answer.end_offset)
            if len(found) == 1:
                cluster.isolate(2)
                await cluster.until(lambda: cluster.leader_of("t") in (1, 3))
                await tx.write("b")
                cluster.heal()
            return answer

        lookup.extent = extent  # type: ignore[method-assign]
        assert await tx.end() == tx.client
        assert found == [1, 2]
        await settled(cluster)
        assert await read(cluster, 1, "t") == ["a", "b"]


@virtual
async def test_a_node_that_dies_amid_an_end_is_replaced_by_any_other() -> None:
    async with writers() as (cluster, tx):
        await tx.enlist("t")
        await tx.write("a")
        under_way = asyncio.create_task(tx.end(node_id=1))
        await asyncio.sleep(0)
        await cluster.kill(1)
        under_way.cancel()
        await asyncio.gather(under_way, return_exceptions=True)
        assert await tx.end(node_id=3) == tx.client
        await settled(cluster)
        assert await read(cluster, 3, "t") == ["a"]


@virtual
async def test_an_end_whose_client_is_gone_does_not_end_the_next_transaction() -> None:
    """Kafka's clients keep one epoch for many transactions, so the request itself does not tell which one it means."""
    async with writers() as (cluster, tx):
        await tx.enlist("t")
        await tx.write("a")
        late = asyncio.create_task(tx.end(node_id=2))
        await asyncio.sleep(0)
        # The connection is closed: the node cancels the request before its barrier returns.
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        await tx.end(node_id=1)
        await tx.enlist("t")
        await tx.write("b")
        assert cluster.image.transactional_ids[NAME].is_open
        await tx.end(is_commit=False)
        await settled(cluster)
        assert await read(cluster, 1, "t") == ["a"]


@virtual
async def test_a_raised_epoch_answers_a_repeated_end() -> None:
    async with writers() as (_, tx):
        await tx.enlist("t")
        await tx.write("a")
        first = await tx.at(1).end(NAME, tx.client, is_commit=True, raises_client=True)
        assert first == KafkaProducer(tx.client.producer_id, tx.client.producer_epoch + 1)
        again = await tx.at(2).end(NAME, tx.client, is_commit=True, raises_client=True)
        assert again == first
        with pytest.raises(TransactionNotFoundError):
            await tx.at(2).end(NAME, tx.client, is_commit=False, raises_client=True)
        with pytest.raises(StaleProducerEpochError):
            await tx.enlist("t")


@virtual
async def test_a_commit_that_the_quorum_refuses_is_told_as_an_abort() -> None:
    async with writers() as (cluster, tx):
        await tx.enlist("t")
        await tx.write("a")
        configs = (("flush.messages", "1000"),)
        await cluster.nodes[1].metadata.propose(
            c.AlterConfigs(topic_id=tx.key()[0], changes=configs), timeout_ms=1_000
        )
        with pytest.raises(TransactionAbortedError):
            await tx.end()
        assert await tx.end(is_commit=False) == tx.client
        await settled(cluster)
        assert await read(cluster, 1, "t") == []


@virtual
async def test_strangers_are_refused_everywhere() -> None:
    async with writers() as (_, tx):
        stranger = KafkaProducer(tx.client.producer_id + 7, 0)
        former = KafkaProducer(tx.client.producer_id, tx.client.producer_epoch + 1)
        for client, kind in ((stranger, InvalidProducerError), (former, StaleProducerEpochError)):
            calls = (
                tx.at(1).enlist(NAME, client, [tx.key()]),
                tx.at(1).enlist_group(NAME, client, "g"),
                tx.at(1).end(NAME, client, is_commit=True),
                tx.at(2).transaction_of(NAME, client, tx.key()),
            )
            for call in calls:
                with pytest.raises(kind):
                    await call


@virtual
async def test_many_enlistments_share_a_command() -> None:
    async with writers() as (cluster, tx):
        before = cluster.image.index
        await asyncio.gather(*(tx.at(1).enlist_group(NAME, tx.client, f"g{n}") for n in range(50)))
        assert cluster.image.index - before <= 5
        assert len(cluster.image.transactional_ids[NAME].groups) == 50


@virtual
async def test_a_node_that_stops_enlists_no_more() -> None:
    async with writers() as (_, tx):
        await tx.at(1).close()
        with pytest.raises(MilenaError, match="stopping"):
            await tx.at(1).enlist_group(NAME, tx.client, "g")
