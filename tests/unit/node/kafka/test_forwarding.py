"""One address for all nodes: every node takes every request, and clients notice nothing of that."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from milena.model.access import Operation, ResourceType, ScramMechanism
from milena.model.errors import InvalidRequestError, UnauthenticatedError
from milena.model.secret import Secret
from node.kafka.forwarding import FORWARDED, ForwardedRequest
from node.kafka.refused_batches import KEPT_PASSING_MS
from node.kafka.wire import cold
from node.peers.messages import pack
from node.replication.fetch_wire import FETCH
from raft_meta.machine.commands import ElectLeaders, LeaderChange
from tests.support.clusters.kafka_clients import (
    ADMIN,
    ANN,
    BOB,
    KafkaClient,
    acl,
    clients_of,
    close_cluster,
    decoded,
    plain,
    sign_in,
    sign_in_by_scram,
    token_of,
)
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.time.virtual_time import LoopClock, settle, virtual
from tests.unit.node.kafka.apis.test_fetch import fetch, request, values
from tests.unit.node.kafka.apis.test_groups import heartbeat, join, sync
from tests.unit.node.kafka.apis.test_produce import batch, fields, produce


@asynccontextmanager
async def shared(*, racks: dict[int, str] | None = None) -> AsyncIterator[tuple[Cluster, Any]]:
    """Three nodes behind one address, with a topic that node 2 leads; and a client of each node."""
    async with (
        cluster_of(Cluster(racks=racks or {})) as cluster,
        clients_of(cluster, 1, 2, 3, is_shared=True) as clients,
    ):
        await cluster.create("t", (2, 3, 1))
        yield cluster, clients


@virtual
async def test_all_brokers_have_the_same_address() -> None:
    async with shared() as (_, clients):
        for client in clients.values():
            found = await client.call(3, 9, topics=[{"name": "t"}])
            assert [(b.node_id, b.host, b.port) for b in found.brokers] == [
                (node_id, "lb.example.org", 9092) for node_id in (1, 2, 3)
            ]
            assert found.topics[0].partitions[0].leader_id == 2


@pytest.mark.parametrize("version", [3, 9, 11])
@virtual
async def test_records_are_written_at_their_leader(version: int) -> None:
    async with shared() as (cluster, clients):
        for offset, node_id in enumerate((1, 2, 3)):
            row = await produce(clients[node_id], batch(f"{node_id}"), version=version)
            assert (row.error_code, row.base_offset) == (0, offset)
        assert await cluster.nodes[2].read("t") == ["1", "2", "3"]
        counts = {i: node.counts.kafka.forwarded for i, node in cluster.nodes.items()}
        assert counts == {1: 1, 2: 0, 3: 1}
        assert cluster.nodes[1].counts.kafka.requests["Produce", 0] == 1


@virtual
async def test_requests_of_one_connection_stay_in_order_and_need_no_wait_between_them() -> None:
    async with shared() as (cluster, clients):
        client = clients[1]
        made = await client.call(22, 4, transactional_id=None, transaction_timeout_ms=1)
        cluster.network_ms = lambda rng: 50.0
        began_ms = LoopClock().now_ms()
        for number in range(20):
            producer = (made.producer_id, made.producer_epoch, number)
            client.ask(
                0, 9, cold.encode_request(0, 9, fields(batch(f"{number}", producer=producer)))
            )
        await client.connection.idle()
        rows = [
            decoded(0, 9, body).responses[0].partition_responses[0] for _, body in client.answers()
        ]
        assert [(row.error_code, row.base_offset) for row in rows] == [(0, n) for n in range(20)]
        # A request needs 200 ms: to the leader, to a follower, and back.
        assert LoopClock().now_ms() - began_ms < 1_000


@virtual
async def test_a_batch_is_not_passed_on_before_one_that_found_no_way_to_the_leader() -> None:
    """A partition takes any sequence as the first one of a producer, so the first batch could never follow."""
    async with shared() as (cluster, clients):
        client = clients[1]
        made = await client.call(22, 4, transactional_id=None, transaction_timeout_ms=1)

        async def write(sequence: int) -> int:
            records = batch(f"{sequence}", producer=(made.producer_id, 0, sequence))
            return int((await produce(client, records)).error_code)

        handlers = cluster.network.handlers.pop(2)
        cluster.network.links.discard((1, 2))
        assert await write(0) == 6
        cluster.network.handlers[2] = handlers
        assert await write(1) == 6
        assert [await write(0), await write(1), await write(2)] == [0, 0, 0]
        assert await cluster.nodes[2].read("t") == ["0", "1", "2"]


@virtual
async def test_a_batch_is_not_passed_on_before_one_that_the_leader_refused() -> None:
    async with shared() as (cluster, clients):
        client = clients[1]
        made = await client.call(22, 4, transactional_id=None, transaction_timeout_ms=1)
        first = batch("0", producer=(made.producer_id, 0, 0))
        assert (await produce(client, first[:-1])).error_code != 0
        later = batch("1", producer=(made.producer_id, 0, 1))
        # This node refuses it: it does not lead. The leader of then may not be the one of now.
        assert (await produce(client, later)).error_code == 6
        assert cluster.nodes[1].counts.kafka.forwarded == 1
        await asyncio.sleep((KEPT_PASSING_MS + 1) / 1000)
        assert (await produce(client, later)).error_code == 45
        assert [(await produce(client, each)).error_code for each in (first, later)] == [0, 0]


@virtual
async def test_a_request_for_another_broker_waits_for_those_on_their_way() -> None:
    async with shared() as (cluster, clients):
        client = clients[1]
        await cluster.create("u", (3, 1, 2))
        cluster.network_ms = lambda rng: 50.0
        for topic in ("t", "u"):
            client.ask(0, 9, cold.encode_request(0, 9, fields(batch("a"), topic=topic)))
        await LoopClock().sleep(100)
        assert cluster.nodes[1].counts.kafka.forwarded == 1
        await client.connection.idle()
        assert cluster.nodes[1].counts.kafka.forwarded == 2
        assert len(client.answers()) == 2


@virtual
async def test_a_batch_is_not_passed_on_to_a_new_leader_before_one_that_is_not_decided_here() -> (
    None
):
    """This node led until now, and does not know yet whether its last batch is cut off."""
    async with shared() as (cluster, clients):
        client = clients[1]
        await cluster.create("u", (1, 2, 3))
        made = await client.call(22, 4, transactional_id=None, transaction_timeout_ms=1)

        def ask(sequence: int) -> None:
            records = batch(f"{sequence}", producer=(made.producer_id, 0, sequence))
            body = fields(records, topic="u", timeout_ms=60_000)
            client.ask(0, 9, cold.encode_request(0, 9, body))

        cluster.network.lose_answers_to |= {(node_id, FETCH) for node_id in (1, 2, 3)}
        ask(0)
        await settle()
        image = cluster.nodes[1].metadata.image
        key = (image.topic_ids["u"], 0)
        change = LeaderChange(
            topic_id=key[0],
            partition=0,
            partition_epoch=image.partitions[key].partition_epoch,
            leader=2,
            isr=(2, 3),
        )
        await cluster.nodes[1].metadata.propose(
            ElectLeaders(controller_epoch=image.controller_epoch, changes=(change,)),
            timeout_ms=1_000,
        )
        await cluster.until(lambda: cluster.is_led("u"))
        assert cluster.runner(1, "u").log.log_end_offset == 1, "the batch is not cut off yet"
        ask(1)
        await settle()
        cluster.network.lose_answers_to.clear()
        await client.connection.idle()
        assert [
            decoded(0, 9, body).responses[0].partition_responses[0].error_code
            for _, body in client.answers()
        ] == [7, 6]
        assert await cluster.nodes[2].read("u") == []
        ask(0)
        ask(1)
        await client.connection.idle()
        assert await cluster.nodes[2].read("u") == ["0", "1"]


@virtual
async def test_nothing_is_passed_on_behind_a_request_whose_response_is_lost() -> None:
    async with shared() as (cluster, clients):
        client = clients[1]
        await cluster.kill(3)
        # It waits for node 3, and all responses behind it wait, too.
        client.ask(0, 9, cold.encode_request(0, 9, fields(batch("a"), timeout_ms=60_000)))
        # Without acks, the only response to a refusal is the end of the connection.
        client.ask(0, 9, cold.encode_request(0, 9, fields(batch("b")[:-1], acks=0)))
        await LoopClock().sleep(100)
        assert cluster.nodes[1].counts.kafka.forwarded == 2
        assert not client.transport.is_aborted
        client.ask(0, 9, cold.encode_request(0, 9, fields(batch("c"))))
        await settle()
        assert cluster.nodes[1].counts.kafka.forwarded == 2
        assert client.transport.is_aborted


@virtual
async def test_without_acks_there_is_no_response() -> None:
    async with shared() as (cluster, clients):
        client = clients[1]
        client.ask(0, 9, cold.encode_request(0, 9, fields(batch("a"), acks=0)))
        await client.connection.idle()
        assert client.answers() == []
        assert not client.transport.is_aborted
        await cluster.until(lambda: cluster.runner(2, "t").high_watermark == 1)
        assert await cluster.nodes[2].read("t") == ["a"]


@virtual
async def test_records_are_read_and_waited_for_at_their_leader() -> None:
    async with shared(racks={1: "a", 2: "b", 3: "c"}) as (cluster, clients):
        await produce(clients[2], batch("a"))
        for client in clients.values():
            (part,) = await fetch(client, ("t", 0, 0), rack_id="c")
            # A client that is sent to a replica would come to any node again.
            assert (part.error_code, part.preferred_read_replica) == (0, -1)
            assert values(bytes(part.records)) == ["a"]
        asking = asyncio.create_task(fetch(clients[1], ("t", 0, 1), max_wait_ms=60_000))
        await LoopClock().sleep(200)
        await produce(clients[3], batch("b"))
        (part,) = await asking
        assert values(bytes(part.records)) == ["b"]
        assert cluster.nodes[1].counts.kafka.forwarded == 2


@virtual
async def test_offsets_and_epochs_come_from_the_leader() -> None:
    async with shared() as (_, clients):
        await produce(clients[2], batch("a", "b"))
        for client in clients.values():
            for timestamp, offset in ((-1, 2), (-2, 0)):
                found = await client.call(
                    2,
                    6,
                    replica_id=-1,
                    isolation_level=0,
                    topics=[{
                        "name": "t",
                        "partitions": [{
                            "partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp,
                        }],
                    }],
                )  # fmt: skip
                part = found.topics[0].partitions[0]
                assert (part.error_code, part.offset) == (0, offset)
            found = await client.call(
                23,
                4,
                replica_id=-1,
                topics=[{
                    "topic": "t",
                    "partitions": [{
                        "partition": 0, "current_leader_epoch": -1, "leader_epoch": 0,
                    }],
                }],
            )  # fmt: skip
            part = found.topics[0].partitions[0]
            assert (part.error_code, part.end_offset) == (0, 2)


@virtual
async def test_a_group_lives_at_its_coordinator_wherever_its_members_connect() -> None:
    async with shared() as (cluster, clients):
        coordinator = cluster.nodes[1].groups.classic.find_coordinator("g")
        away = next(clients[i] for i in (1, 2, 3) if i != coordinator)
        needed = await join(away, version=4)
        assert needed.error_code == 79
        for client in clients.values():
            joined = await join(client, version=4, member_id=needed.member_id)
            assert joined.error_code == 0
            synced = await sync(client, joined, version=2, rows=[(joined.member_id, b"assigned")])
            assert (synced.error_code, synced.assignment) == (0, b"assigned")
            assert await heartbeat(client, joined) == 0
            committed = await client.call(
                8,
                5,
                group_id="g",
                generation_id_or_member_epoch=joined.generation_id,
                member_id=joined.member_id,
                topics=[{
                    "name": "t",
                    "partitions": [{
                        "partition_index": 0, "committed_offset": 1, "committed_metadata": "",
                    }],
                }],
            )  # fmt: skip
            assert committed.topics[0].partitions[0].error_code == 0
            for version in (5, 8):
                named: dict[str, Any] = (
                    {"group_id": "g", "topics": None}
                    if version < 8
                    else {"groups": [{"group_id": "g", "topics": None}]}
                )
                found = await client.call(9, version, require_stable=False, **named)
                rows = found.topics if version < 8 else found.groups[0].topics
                assert rows[0].partitions[0].committed_offset == 1
            described = await client.call(15, 4, groups=["g"])
            assert described.groups[0].group_state == "Stable"
            listed = await client.call(16, 4, states_filter=[])
            assert [row.group_id for row in listed.groups] == ["g"]


@virtual
async def test_a_broker_is_described_by_itself() -> None:
    async with shared() as (cluster, clients):
        for node_id in (1, 2, 3):
            found = await clients[1].call(
                32, 4, resources=[{
                    "resource_type": 4, "resource_name": f"{node_id}", "configuration_keys": None,
                }],
            )  # fmt: skip
            assert found.results[0].error_code == 0
        assert cluster.nodes[1].counts.kafka.forwarded == 2


@virtual
async def test_producers_and_transactions_are_seen_wherever_a_tool_connects() -> None:
    async with shared() as (_, clients):
        for node_id, name in ((1, "a"), (2, "b"), (3, "c")):
            made = await clients[node_id].call(
                22, 4, transactional_id=name, transaction_timeout_ms=60_000
            )
            assert made.error_code == 0
        made = await clients[1].call(22, 4, transactional_id=None, transaction_timeout_ms=1)
        producer = (made.producer_id, made.producer_epoch, 0)
        assert (await produce(clients[1], batch("a", producer=producer))).error_code == 0
        for client in clients.values():
            listed = await client.call(66, 0, state_filters=[], producer_id_filters=[])
            assert {row.transactional_id for row in listed.transaction_states} == {"a", "b", "c"}
            found = await client.call(61, 0, topics=[{"name": "t", "partition_indexes": [0]}])
            (part,) = found.topics[0].partitions
            assert part.error_code == 0
            assert [row.producer_id for row in part.active_producers] == [made.producer_id]


@virtual
async def test_a_leader_that_cannot_be_reached_is_none_to_clients() -> None:
    async with shared() as (cluster, clients):
        cluster.network.kill(2)
        assert (await produce(clients[1], batch("a"))).error_code == 6
        (part,) = await fetch(clients[1], ("t", 0, 0), version=10)
        assert part.error_code == 6


@virtual
async def test_a_connection_ends_if_the_response_of_its_request_is_lost() -> None:
    async with shared() as (cluster, clients):
        asking = request(("t", 0, 0), max_wait_ms=60_000)
        for key, version, body in ((1, 11, asking), (0, 9, fields(batch("a")))):
            client = clients[1] if key else clients[3]
            cluster.network.lose_answers_to.add((1 if key else 3, FORWARDED.name))
            client.ask(key, version, cold.encode_request(key, version, body))
        await settle()
        await cluster.kill(2)
        await settle()
        assert clients[1].transport.is_aborted
        assert clients[3].transport.is_aborted
        assert cluster.nodes[1].counts.kafka.requests.get(("Fetch", 0)) is None


@virtual
async def test_a_request_of_another_release_or_a_malformed_one_is_refused() -> None:
    async with shared() as (cluster, clients):
        del clients
        handler = cluster.network.handlers[2][FORWARDED.name]
        for key, version, body in ((999, 0, b""), (0, 99, b""), (0, 9, b"\x01"), (11, 5, b"")):
            asked = ForwardedRequest(
                key=key, version=version, client_id="c", client_host="h", caller="",
                host="a", port=1, listener="plain", lane=1,
            )  # fmt: skip
            with pytest.raises(InvalidRequestError):
                await handler(1, pack(asked)[0], body)  # type: ignore[misc]


@virtual
async def test_a_client_that_leaves_leaves_nothing_behind() -> None:
    async with shared() as (cluster, clients):
        client: KafkaClient = clients[1]
        client.ask(1, 11, cold.encode_request(1, 11, request(("t", 0, 0), max_wait_ms=1_000)))
        await settle()
        assert len(cluster.runner(2, "t").watchers) > 0
        client.transport.abort()
        await LoopClock().sleep(1_500)
        assert not any(
            type(watcher).__name__ == "EndsWait" for watcher in cluster.runner(2, "t").watchers
        )


@virtual
async def test_the_leader_checks_the_rights_of_a_client_that_another_node_let_in() -> None:
    async with shared() as (cluster, clients):
        read = acl("ann", Operation.READ, ResourceType.TOPIC, "t")
        await close_cluster(cluster.nodes[1], read)
        token = await token_of(cluster.nodes[1], "ann", lifetime_ms=60_000)
        await settle()
        ann, bob = clients[1], clients[3]
        assert (await sign_in(ann, plain("ann", token))).error_code == 0
        assert (await sign_in(bob, plain(*BOB))).error_code == 0
        assert (await produce(ann, batch("a"))).error_code == 29
        assert [part.error_code for part in await fetch(ann, ("t", 0, 0))] == [0]
        assert [part.error_code for part in await fetch(bob, ("t", 0, 0))] == [29]
        assert cluster.nodes[2].refusals.take()["refusals"][0]["principal"] == "User:ann"
        await cluster.nodes[1].access.delete_token("ann", token.split("_")[1])
        await settle()
        ann.ask(1, 11, cold.encode_request(1, 11, request(("t", 0, 0))))
        await ann.connection.idle()
        assert ann.answers() == []
        assert ann.transport.is_aborted


@virtual
async def test_a_refused_batch_keeps_back_no_batch_of_another_principal() -> None:
    """A producer id is a number that any client can guess."""
    async with shared() as (cluster, clients):
        await close_cluster(cluster.nodes[1])
        await settle()
        admin, bob = clients[1], clients[3]
        assert (await sign_in(admin, plain(*ADMIN))).error_code == 0
        assert (await sign_in(bob, plain(*BOB))).error_code == 0
        made = await admin.call(22, 4, transactional_id=None, transaction_timeout_ms=1)
        forged = batch("forged", producer=(made.producer_id, 0, 0))
        assert (await produce(bob, forged)).error_code == 29
        # The topic was made again, for example: the producer goes on with its next sequence.
        late = batch("a", producer=(made.producer_id, 0, 3))
        assert (await produce(admin, late)).error_code == 0


@virtual
async def test_scram_credentials_of_one_node_are_good_and_end_at_all() -> None:
    async with shared() as (cluster, clients):
        access = cluster.nodes[1].access
        await close_cluster(cluster.nodes[1], acl("ann", Operation.READ, ResourceType.TOPIC, "t"))

        async def put(password: str) -> None:
            await access.put_user(
                "ann",
                password=Secret(password),
                is_superuser=None,
                keeps_previous=False,
                scram=True,
            )
            await settle()

        await put(ANN[1])
        # The requests go on to the leader, node 2.
        assert (await sign_in_by_scram(clients[3], *ANN)).error_code == 0
        assert [part.error_code for part in await fetch(clients[3], ("t", 0, 0))] == [0]
        assert (await produce(clients[3], batch("a"))).error_code == 29
        decoys = {
            node.scram_logins.begin("nobody", ScramMechanism.SHA_256, "10.0.0.1").credential
            for node in cluster.nodes.values()
        }
        assert len(decoys) == 1
        await put("the next password")
        clients[3].ask(1, 11, cold.encode_request(1, 11, request(("t", 0, 0))))
        await clients[3].connection.idle()
        assert clients[3].answers() == []
        assert clients[3].transport.is_aborted


@virtual
async def test_a_node_lets_no_client_in_that_it_does_not_know_itself() -> None:
    async with shared() as (cluster, _):
        node = cluster.nodes[2]
        await close_cluster(node)
        body = cold.encode_request(1, 11, request(("t", 0, 0)))
        for vouched in (
            {"caller": ""},
            {"caller": "User:ANONYMOUS"},
            {"caller": "User:admin", "user": "admin", "user_index": 1},
            {"caller": "User:admin", "token": "gone"},
            {"caller": "User:admin", "expires_ms": 1},
        ):
            asked = ForwardedRequest(
                key=1,
                version=11,
                client_id="",
                client_host="10.0.0.1",
                host="lb.example.org",
                port=9092,
                listener="plain",
                lane=1,
                **vouched,
            )
            with pytest.raises(UnauthenticatedError):
                await cluster.network.handlers[2][FORWARDED.name](1, pack(asked)[0], body)
