"""The identity of a connection: it ends with its user, its token, its session, and when the cluster is closed."""

import asyncio
from itertools import pairwise

import pytest

from http_api.serving.in_flight import RequestBytes
from milena.model.access import AccessMode
from milena.model.secret import Secret
from milena.model.turns import one_turn
from node.kafka.connection import IN_WORK_MAX, KafkaPatience
from tests.support.clusters.kafka_clients import (
    ADMIN,
    KafkaClient,
    authenticate,
    client_of,
    close_cluster,
    listener_of,
    plain,
    request_frame,
    sign_in,
    sign_in_by_scram,
    token_of,
)
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.time.virtual_time import after, settle, virtual

DESCRIBE_CLUSTER = b"\0\0\0"


async def signed_in(node: SimNode, message: bytes) -> KafkaClient:
    client = client_of(node)
    assert (await sign_in(client, message)).error_code == 0
    assert (await client.call(60, 0)).error_code == 0
    return client


async def is_served(client: KafkaClient) -> bool:
    if client.transport.is_aborted:
        return False
    client.ask(60, 0, DESCRIBE_CLUSTER)
    await client.connection.idle()
    await settle()
    return bool(client.answers())


@virtual
async def test_a_deleted_token_gets_no_further_response() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        token = await token_of(node, "admin")
        client, other = (
            await signed_in(node, plain("admin", token)),
            await signed_in(node, plain(*ADMIN)),
        )
        await node.access.delete_token("admin", token.split("_")[1])
        assert not await is_served(client)
        assert await is_served(other)


@virtual
async def test_a_changed_password_ends_the_connections_of_the_former_one() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        await node.access.put_user("eve", password=None, is_superuser=True, keeps_previous=False)
        token = await token_of(node, "eve")
        client, idle = (
            await signed_in(node, plain("eve", token)),
            await signed_in(node, plain("eve", token)),
        )
        await node.access.delete_user("eve")
        assert not await is_served(client)
        # An idle one ends at the next check.
        idle.connection.check(asyncio.get_running_loop().time())
        assert idle.transport.is_aborted


@virtual
async def test_changed_scram_credentials_end_the_connections_of_the_former_ones() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)

        async def put(name: str, password: str) -> None:
            await node.access.put_user(
                name, password=Secret(password), is_superuser=True, keeps_previous=True, scram=True
            )

        async def by_scram(name: str, password: str) -> KafkaClient:
            client = client_of(node)
            assert (await sign_in_by_scram(client, name, password)).error_code == 0
            return client

        await put("eve", "secret-of-eve")
        client, idle = [await by_scram("eve", "secret-of-eve") for _ in range(2)]
        # A change of another user ends none.
        await put("sue", "secret-of-sue")
        other = await by_scram("sue", "secret-of-sue")
        assert await is_served(client)
        await put("eve", "next-secret-of-eve")
        assert not await is_served(client)
        idle.connection.check(asyncio.get_running_loop().time())
        assert idle.transport.is_aborted
        assert await is_served(other)
        renewed = await by_scram("eve", "next-secret-of-eve")
        await node.access.put_user(
            "eve", password=None, is_superuser=None, keeps_previous=False, scram=False
        )
        assert not await is_served(renewed)


@virtual
async def test_an_unrelated_change_costs_no_connection_and_no_second_look_at_the_password() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        client = await signed_in(node, plain(*ADMIN))
        await after(400_000)
        await node.access.put_user("new", password=None, is_superuser=False, keeps_previous=False)
        node.callers.passwords.find = None  # type: ignore[assignment]
        client.connection.check(asyncio.get_running_loop().time())
        assert await is_served(client)


@virtual
async def test_a_session_ends_with_its_token_unless_the_client_signs_in_again() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        short = await token_of(node, "admin", lifetime_ms=60_000)
        ended, renewed = (
            await signed_in(node, plain("admin", short)),
            await signed_in(node, plain("admin", short)),
        )
        await after(61_000)
        for client in (ended, renewed):
            client.connection.check(asyncio.get_running_loop().time())
        assert (await sign_in(renewed, plain(*ADMIN))).error_code == 0
        assert await is_served(renewed)
        assert not await is_served(ended)


@pytest.mark.parametrize("mode", [AccessMode.OFF, AccessMode.OPTIONAL])
def test_when_the_cluster_closes_clients_without_credentials_go(mode: AccessMode) -> None:
    @virtual
    async def run() -> None:
        async with cluster_of(Cluster(node_ids=(1,))) as cluster:
            node = cluster.nodes[1]
            await close_cluster(node, mode=AccessMode.OFF)
            busy, idle = client_of(node), client_of(node)
            assert (await busy.call(18, 0)).error_code == 0
            if mode is AccessMode.OFF:
                assert await is_served(busy)
            await node.access.set_mode(AccessMode.REQUIRED)
            assert not await is_served(busy)
            idle.connection.check(asyncio.get_running_loop().time())
            assert idle.transport.is_aborted
            label = ("DescribeCluster", 58)
            assert node.counts.kafka.requests[label] == 1

    run()


@virtual
async def test_a_client_that_does_not_sign_in_in_time_is_closed_whatever_it_sends() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        listener = listener_of(node, patience=KafkaPatience(handshake_s=10))
        slow, quick = KafkaClient(listener.connection()), KafkaClient(listener.connection())
        await sign_in(quick, plain(*ADMIN))
        loop = asyncio.get_running_loop()
        for _ in range(10):
            await after(900)
            assert (await slow.call(18, 0)).error_code == 0
            slow.connection.check(loop.time())
            assert not slow.transport.is_aborted
        await after(2_000)
        for client in (slow, quick):
            client.connection.check(loop.time())
        assert slow.transport.is_aborted
        assert not quick.transport.is_aborted


@virtual
async def test_strangers_frames_are_short_and_have_a_bound_of_their_own() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        listener = listener_of(node)
        stranger, ann = KafkaClient(listener.connection()), KafkaClient(listener.connection())
        context = ann.connection._context
        stranger.send((60_000).to_bytes(4, "big") + bytes(50_000))
        assert (context.strangers_budget.held_bytes, context.budget.held_bytes) == (50_004, 0)
        assert (await sign_in(ann, plain(*ADMIN))).error_code == 0
        ann.send((1 << 20).to_bytes(4, "big") + bytes(50_000))
        assert (context.strangers_budget.held_bytes, context.budget.held_bytes) == (50_004, 50_004)
        other = KafkaClient(listener.connection())
        other.send((65 << 10).to_bytes(4, "big"))
        assert other.transport.is_aborted
        stranger.transport.abort()
        ann.transport.abort()
        await settle()
        assert (context.strangers_budget.held_bytes, context.budget.held_bytes) == (0, 0)


@virtual
async def test_a_client_that_signs_in_while_strangers_exceed_their_bound_is_read_again() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        # The bound of strangers is an eighth of these bytes.
        listener = listener_of(node, request_bytes=RequestBytes(400_000))
        stranger, ann = KafkaClient(listener.connection()), KafkaClient(listener.connection())
        assert (await ann.call(17, 1, mechanism="PLAIN")).error_code == 0
        stranger.send((60_000).to_bytes(4, "big") + bytes(50_000))
        assert (await authenticate(ann, plain(*ADMIN))).error_code == 0
        assert not ann.transport.is_paused
        assert await is_served(ann)


@virtual
async def test_strangers_in_a_flood_lose_their_connections_and_others_keep_theirs() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        listener = listener_of(node, request_bytes=RequestBytes(80_000))
        ann = KafkaClient(listener.connection())
        assert (await sign_in(ann, plain(*ADMIN))).error_code == 0
        strangers = [KafkaClient(listener.connection()) for _ in range(50)]
        for stranger in strangers:
            stranger.send((60_000).to_bytes(4, "big") + bytes(8_996))
        # Their bound is 10,000 bytes. Each brings 9,000 before it can be held.
        budget = strangers[0].connection._context.strangers_budget
        assert budget.held_bytes == 27_000
        closed = [stranger.transport.is_aborted for stranger in strangers]
        assert closed == [False] * 3 + [True] * 47
        await settle()
        assert await is_served(ann)
        strangers[0].transport.abort()
        await settle()
        late = KafkaClient(listener.connection())
        assert (await late.call(17, 1, mechanism="PLAIN")).error_code == 0


@virtual
async def test_a_strangers_requests_come_one_at_a_time() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        client = client_of(node)
        assert (await client.call(17, 1, mechanism="PLAIN")).error_code == 0
        message = plain("admin", "wrong")
        client.ask(36, 0, len(message).to_bytes(4, "big") + message)
        assert client.transport.is_paused
        await client.connection.idle()
        assert len(client.answers()) == 1


@virtual
async def test_requests_of_strangers_start_in_turns_and_other_clients_do_not_wait_for_them() -> (
    None
):
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        listener = listener_of(node)
        friend = KafkaClient(listener.connection())
        assert (await sign_in(friend, plain(*ADMIN))).error_code == 0
        strangers = [KafkaClient(listener.connection()) for _ in range(50)]
        for stranger in strangers:
            stranger.ask(18, 0, b"")
        friend.ask(60, 0, DESCRIBE_CLUSTER)
        served, before_friend = [0], -1
        while served[-1] < len(strangers):
            await one_turn()
            served.append(sum(bool(one.transport.sent) for one in strangers))
            if before_friend < 0 and friend.transport.sent:
                before_friend = served[-1]
        assert max(later - sooner for sooner, later in pairwise(served)) == 1
        assert 0 <= before_friend < 10


@virtual
async def test_a_stranger_that_sends_many_requests_at_once_is_closed() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        for count, is_closed in ((IN_WORK_MAX, False), (IN_WORK_MAX + 1, True)):
            stranger = client_of(node)
            stranger.send(request_frame(18, 0, b"") * count)
            await stranger.connection.idle()
            assert stranger.transport.is_aborted is is_closed
            assert len(stranger.answers()) == (0 if is_closed else count)
        friend = await signed_in(node, plain(*ADMIN))
        friend.send(request_frame(18, 0, b"") * (IN_WORK_MAX + 1))
        await friend.connection.idle()
        assert len(friend.answers()) == IN_WORK_MAX + 1


@virtual
async def test_a_stop_ends_strangers_that_wait_for_their_turn() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        listener = listener_of(node)
        strangers = [KafkaClient(listener.connection()) for _ in range(5)]
        for stranger in strangers:
            stranger.ask(18, 0, b"")
        await one_turn()
        for stranger in strangers:
            stranger.connection.drain()
        await settle()
        assert all(stranger.transport.is_aborted for stranger in strangers)
        assert node.counts.contained.total == 0
