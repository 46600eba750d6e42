"""The views of transactions that admin clients get."""

from typing import Any

from tests.support.clusters.kafka_clients import client_of, clients_of
from tests.support.clusters.nodes import Cluster
from tests.support.clusters.overtaken import deaf
from tests.support.time.virtual_time import virtual
from tests.unit.node.kafka.apis.test_transactions import sessions


async def listed(
    cluster: Cluster, *node_ids: int, version: int = 1, **filters: Any
) -> list[tuple[str, str]]:
    """Name and state of the transactions that brokers with the interface list together; without ids, all have it."""
    asked = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1} | filters
    rows = []
    async with clients_of(cluster, *(node_ids or cluster.nodes)) as clients:
        for client in clients.values():
            found = await client.call(66, version, **asked)
            assert found.error_code == 0
            told = found.transaction_states
            rows += [(row.transactional_id, row.transaction_state) for row in told]
    return sorted(rows)


@virtual
async def test_each_transaction_is_listed_by_one_broker_with_its_state() -> None:
    async with sessions("empty", "open", "done", "undone") as (cluster, _, open_one, done, undone):
        for tx in (open_one, done, undone):
            await tx.add(0)
            await tx.send("v")
        await done.end(True)
        await undone.end(False)
        wanted = [
            ("done", "CompleteCommit"),
            ("empty", "Empty"),
            ("open", "Ongoing"),
            ("undone", "CompleteAbort"),
        ]
        assert await listed(cluster) == wanted
        assert await listed(cluster, version=0) == wanted
        assert await listed(cluster, state_filters=["Empty", "Other"]) == [("empty", "Empty")]
        ids = [done.producer[0]]
        assert await listed(cluster, producer_id_filters=ids) == [("done", "CompleteCommit")]
        assert await listed(cluster, duration_filter=10**9) == []
        found = await client_of(cluster.nodes[1]).call(
            66, 1, state_filters=["Other"], producer_id_filters=[], duration_filter=-1
        )
        assert found.unknown_state_filters == ["Other"]


@virtual
async def test_brokers_that_clients_reach_list_the_transactions_of_all_others() -> None:
    names = [f"tx{number}" for number in range(12)]
    async with sessions(*names) as (cluster, *_):
        assert await listed(cluster, 1, 2) == sorted((name, "Empty") for name in names)


@virtual
async def test_any_broker_describes_a_transaction() -> None:
    async with sessions("tx", partitions=2) as (cluster, tx):
        await tx.add(1, 0)
        for node in cluster.nodes.values():
            found = await client_of(node).call(65, 0, transactional_ids=["tx", "missing"])
            known, missing = found.transaction_states
            assert (known.error_code, missing.error_code) == (0, 105)
            assert known.transaction_state == "Ongoing"
            assert (known.producer_id, known.producer_epoch) == tx.producer
            assert known.transaction_timeout_ms == 60_000
            assert known.transaction_start_time_ms > 0
            assert [(t.topic, t.partitions) for t in known.topics] == [("t", [0, 1])]


@virtual
async def test_the_leader_describes_producers_as_their_clients_number_themselves() -> None:
    async with sessions("tx") as (cluster, tx):
        await tx.add(0)
        await tx.send("a", "b")

        async def described(node_id: int, partition: int = 0) -> Any:
            topics = [{"name": "t", "partition_indexes": [partition]}]
            found = await client_of(cluster.nodes[node_id]).call(61, 0, topics=topics)
            return found.topics[0].partitions[0]

        assert (await described(1)).error_code == 6
        assert (await described(2, partition=9)).error_code == 3
        (row,) = (await described(2)).active_producers
        assert (row.producer_id, row.producer_epoch) == tx.producer
        assert (row.last_sequence, row.current_txn_start_offset) == (1, 0)
        await tx.end(True)
        await cluster.until(lambda: not cluster.image.ending)
        (row,) = (await described(2)).active_producers
        assert row.current_txn_start_offset == -1


@virtual
async def test_a_transaction_that_another_node_has_begun_is_listed() -> None:
    names = [f"tx{number}" for number in range(12)]
    async with sessions("tx") as (cluster, _), clients_of(cluster, *cluster.nodes) as clients:
        ids = cluster.nodes[1].transactional_ids
        with deaf(cluster, 3):
            for name in names:
                await ids.begin(name, timeout_ms=1_000, client=None)
        rows = []
        for client in (clients[3], clients[1], clients[2]):
            found = await client.call(
                66, 1, state_filters=[], producer_id_filters=[], duration_filter=-1
            )
            rows += [row.transactional_id for row in found.transaction_states]
        assert sorted(rows) == sorted(["tx", *names])
