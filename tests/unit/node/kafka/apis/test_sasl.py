"""SaslHandshake and SaslAuthenticate: how a client of a closed cluster signs in, and what it gets if it fails."""

import asyncio
import struct

import pytest
from kafka.net.sasl.scram import ScramClient

from milena.model.access import AccessMode, ScramMechanism
from milena.model.secret import Secret
from tests.support.clusters.kafka_clients import (
    ADMIN,
    ANN,
    BOB,
    KafkaClient,
    authenticate,
    client_of,
    close_cluster,
    listener_of,
    plain,
    sign_in,
    sign_in_by_scram,
    token_of,
)
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.time.virtual_time import settle, virtual

UNSUPPORTED_MECHANISM, ILLEGAL_STATE, FAILED = 33, 34, 58


def bearer(token: str, user: str = "") -> bytes:
    named = f"a={user}" if user else ""
    return f"n,{named},\x01auth=Bearer {token}\x01\x01".encode()


async def closed_client(node: SimNode) -> KafkaClient:
    await close_cluster(node)
    return client_of(node)


@virtual
async def test_a_user_signs_in_with_its_password() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = await closed_client(cluster.nodes[1])
        for version in (0, 1, 2):
            client = client_of(cluster.nodes[1])
            found = await sign_in(client, plain(*ADMIN), version=version)
            assert (found.error_code, found.auth_bytes) == (0, b"")
            assert (await client.call(3, 9, topics=[])).error_code in (0, None)


@virtual
async def test_a_wrong_password_is_refused_late_and_the_connection_ends() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        client = await closed_client(node)
        loop = asyncio.get_running_loop()
        for message in (plain("admin", "wrong"), plain("nobody", "wrong"), b"nonsense"):
            client, before_s = client_of(node), loop.time()
            found = await sign_in(client, message)
            assert found.error_code == FAILED
            assert loop.time() - before_s >= node.config.limits.bad_credentials_delay_ms / 1000
            await settle()
            assert client.transport.is_aborted
        rows = node.refusals.take()["refusals"]
        assert [(row["principal"], row["address"]) for row in rows] == [(None, "127.0.0.1")] * 3
        assert [row["what"].endswith("(user admin)") for row in rows] == [True, False, False]


@virtual
async def test_the_messages_for_a_wrong_password_and_an_unknown_user_are_the_same() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        await close_cluster(cluster.nodes[1])
        found = [
            await sign_in(client_of(cluster.nodes[1]), plain(user, "wrong"))
            for user in ("admin", "nobody")
        ]
        assert found[0].error_message == found[1].error_message


@virtual
async def test_wrong_passwords_of_an_address_count_together_with_those_over_http() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        for _ in range(30):
            node.callers.passwords.wrong.add("10.0.0.9", node.clock.now_ms())
        listener = listener_of(node)
        there = KafkaClient(listener.connection(), "10.0.0.9")
        await there.call(17, 1, mechanism="PLAIN")
        body = struct.pack(">i", len(plain(*ADMIN))) + plain(*ADMIN)
        there.ask(36, 0, body)
        await there.connection.idle()
        await settle()
        # There is no code that makes a client wait and try again.
        assert there.answers() == []
        assert there.transport.is_aborted
        assert (await sign_in(KafkaClient(listener.connection()), plain(*ADMIN))).error_code == 0


@virtual
async def test_a_token_is_a_password_of_its_user_and_costs_no_slow_hash() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        token = await token_of(node, "admin")
        node.callers.passwords.find = None  # type: ignore[assignment]
        assert (await sign_in(client_of(node), plain("admin", token))).error_code == 0
        wrong = await sign_in(client_of(node), plain("ann", token))
        assert (wrong.error_code, wrong.error_message) == (
            FAILED,
            "these are not the credentials of user ann",
        )
        other = token[:-1] + ("a" if token[-1] != "a" else "b")
        assert (await sign_in(client_of(node), plain("admin", other))).error_code == FAILED


@virtual
async def test_a_token_signs_in_by_oauthbearer_and_its_end_is_told() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        token = await token_of(node, "admin", lifetime_ms=60_000)
        for message in (bearer(token), bearer(token, "admin")):
            found = await sign_in(client_of(node), message, "OAUTHBEARER")
            assert found.error_code == 0
            assert 59_000 < found.session_lifetime_ms <= 60_000
        forever = await token_of(node, "admin")
        found = await sign_in(client_of(node), bearer(forever), "OAUTHBEARER")
        assert (found.error_code, found.session_lifetime_ms) == (0, 0)


@virtual
async def test_a_bad_token_gets_the_response_of_the_mechanism_and_then_the_error() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node)
        token = await token_of(node, "admin")
        for message in (bearer("mln_x_y"), bearer(token, "ann"), b"nonsense"):
            client = client_of(node)
            found = await sign_in(client, message, "OAUTHBEARER")
            assert (found.error_code, found.auth_bytes) == (0, b'{"status":"invalid_token"}')
            assert (await authenticate(client, b"\x01")).error_code == FAILED
            await settle()
            assert client.transport.is_aborted


@virtual
async def test_a_mechanism_that_does_not_exist_is_answered_with_those_that_do() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = await closed_client(cluster.nodes[1])
        found = await client.call(17, 1, mechanism="GSSAPI")
        assert (found.error_code, found.mechanisms) == (
            UNSUPPORTED_MECHANISM,
            ["OAUTHBEARER", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
        )


@virtual
async def test_a_message_without_a_handshake_is_refused() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        client = await closed_client(cluster.nodes[1])
        assert (await authenticate(client, plain(*ADMIN))).error_code == ILLEGAL_STATE
        await settle()
        assert client.transport.is_aborted


def raw(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


@virtual
async def test_after_handshake_0_the_message_has_no_header() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        client = await closed_client(node)
        assert (await client.call(17, 0, mechanism="PLAIN")).error_code == 0
        client.send(raw(plain(*ADMIN)))
        await client.connection.idle()
        assert bytes(client.transport.sent) == raw(b"")
        client.transport.sent.clear()
        assert (await client.call(60, 0)).error_code == 0
        refused = client_of(node)
        await refused.call(17, 0, mechanism="PLAIN")
        refused.send(raw(b"\0a\0b"))
        await refused.connection.idle()
        await settle()
        assert bytes(refused.transport.sent) == b""
        assert refused.transport.is_aborted


@virtual
async def test_credentials_are_looked_at_once_the_cluster_asks_for_them() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await close_cluster(node, mode=AccessMode.OFF)
        good, bad = client_of(node), client_of(node)
        assert (await sign_in(good, plain(*ADMIN))).error_code == 0
        assert (await sign_in(bad, plain("admin", "wrong"))).error_code == 0
        await node.access.set_mode(AccessMode.REQUIRED)
        assert (await good.call(60, 0)).error_code == 0
        bad.ask(60, 0, b"\0\0\0")
        await bad.connection.idle()
        assert bad.transport.is_aborted


@virtual
async def test_a_client_may_sign_in_again_as_the_same_user_only() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        client = await closed_client(node)
        token = await token_of(node, "admin", lifetime_ms=60_000)
        assert (await sign_in(client, plain(*ADMIN))).error_code == 0
        assert (await sign_in(client, bearer(token), "OAUTHBEARER")).error_code == 0
        found = await sign_in(client, plain(*ANN))
        assert found.error_code == FAILED
        assert (
            found.error_message == "the connection is User:admin's; open another one to be User:ann"
        )
        await settle()
        assert client.transport.is_aborted


# -- SCRAM -----------------------------------------------------------------------------------------


async def with_scram(node: SimNode, *, mode: AccessMode = AccessMode.REQUIRED) -> None:
    """Close the cluster, and give its users SCRAM credentials."""
    await close_cluster(node, mode=mode)
    for name, password in (ADMIN, ANN):
        await node.access.put_user(
            name, password=Secret(password), is_superuser=None, keeps_previous=False, scram=True
        )


@virtual
async def test_a_user_with_scram_credentials_proves_its_password() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await with_scram(node)
        for mechanism in ScramMechanism:
            for version in (0, 1, 2):
                client = client_of(node)
                found = await sign_in_by_scram(client, *ADMIN, mechanism, version=version)
                assert found.error_code == 0
                assert (await client.call(60, 0)).error_code == 0


@virtual
async def test_a_wrong_proof_is_refused_late_and_the_connection_ends() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await with_scram(node)
        loop = asyncio.get_running_loop()
        messages = set()
        for user, password in (("admin", "wrong"), ("nobody", "wrong"), ("bob", BOB[1])):
            client, before_s = client_of(node), loop.time()
            found = await sign_in_by_scram(client, user, password)
            assert found.error_code == FAILED
            messages.add(found.error_message)
            assert loop.time() - before_s >= node.config.limits.bad_credentials_delay_ms / 1000
            await settle()
            assert client.transport.is_aborted
        assert len(messages) == 1
        rows = node.refusals.take()["refusals"]
        assert [(row["principal"], row["address"]) for row in rows] == [(None, "127.0.0.1")] * 3
        assert [row["what"].rpartition(" (")[2] for row in rows] == [
            "user admin)",
            "there is no user of this name and password",
            "user bob)",
        ]


@pytest.mark.parametrize("step", ["first", "final"])
@pytest.mark.parametrize("message", [b"", b"n,,", b"\xff" * 9, b"n,,n=ann,r=x,m=y", b"a" * 60_000])
def test_a_malformed_message_ends_its_own_connection_alone(step: str, message: bytes) -> None:
    @virtual
    async def run() -> None:
        async with cluster_of(Cluster(node_ids=(1,))) as cluster:
            node = cluster.nodes[1]
            await with_scram(node)
            good, client = client_of(node), client_of(node)
            assert (await sign_in_by_scram(good, *ADMIN)).error_code == 0
            if step == "first":
                found = await sign_in(client, message, "SCRAM-SHA-256")
            else:
                first = ScramClient(*ADMIN, "SCRAM-SHA-256").first_message()
                assert (await sign_in(client, first, "SCRAM-SHA-256")).error_code == 0
                found = await authenticate(client, message)
            assert (found.error_code, found.auth_bytes) == (FAILED, b"")
            await settle()
            assert client.transport.is_aborted
            assert (await good.call(60, 0)).error_code == 0

    run()


@virtual
async def test_half_an_exchange_lets_no_request_in() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await with_scram(node)
        client = client_of(node)
        first = ScramClient(*ADMIN, "SCRAM-SHA-256").first_message()
        assert (await sign_in(client, first, "SCRAM-SHA-256")).error_code == 0
        client.ask(60, 0, b"\0\0\0")
        await client.connection.idle()
        assert client.answers() == []
        assert client.transport.is_aborted


@virtual
async def test_a_handshake_begins_the_exchange_again() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await with_scram(node)
        client, scram = client_of(node), ScramClient(*ADMIN, "SCRAM-SHA-256")
        found = await sign_in(client, scram.first_message(), "SCRAM-SHA-256")
        scram.process_server_first_message(found.auth_bytes)
        assert (await client.call(17, 1, mechanism="SCRAM-SHA-256")).error_code == 0
        # The final message belongs to the exchange before.
        assert (await authenticate(client, scram.final_message())).error_code == FAILED
        # After an exchange, there is none.
        client = client_of(node)
        assert (await sign_in_by_scram(client, *ADMIN)).error_code == 0
        assert (await authenticate(client, b"n,,n=admin,r=x")).error_code == ILLEGAL_STATE


@virtual
async def test_after_handshake_0_both_messages_of_scram_have_no_header() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await with_scram(node)

        async def step(client: KafkaClient, message: bytes) -> bytes:
            client.send(raw(message))
            await client.connection.idle()
            sent = bytes(client.transport.sent)
            client.transport.sent.clear()
            return sent[4:]

        client, scram = client_of(node), ScramClient(*ADMIN, "SCRAM-SHA-512")
        assert (await client.call(17, 0, mechanism="SCRAM-SHA-512")).error_code == 0
        scram.process_server_first_message(await step(client, scram.first_message()))
        scram.process_server_final_message(await step(client, scram.final_message()))
        assert (await client.call(60, 0)).error_code == 0
        refused, scram = client_of(node), ScramClient("admin", "wrong", "SCRAM-SHA-512")
        await refused.call(17, 0, mechanism="SCRAM-SHA-512")
        scram.process_server_first_message(await step(refused, scram.first_message()))
        assert await step(refused, scram.final_message()) == b""
        await settle()
        assert refused.transport.is_aborted


@virtual
async def test_an_address_with_too_many_wrong_proofs_gets_no_response() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await with_scram(node)
        for _ in range(30):
            node.callers.passwords.wrong.add("10.0.0.9", node.clock.now_ms())
        listener = listener_of(node)
        there = KafkaClient(listener.connection(), "10.0.0.9")
        await there.call(17, 1, mechanism="SCRAM-SHA-256")
        there.ask(36, 0, raw(ScramClient(*ADMIN, "SCRAM-SHA-256").first_message()))
        await there.connection.idle()
        await settle()
        assert there.answers() == []
        assert there.transport.is_aborted
        here = KafkaClient(listener.connection())
        assert (await sign_in_by_scram(here, *ADMIN)).error_code == 0


@virtual
async def test_a_client_may_sign_in_again_by_scram_as_the_same_user_only() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await with_scram(node)
        client = client_of(node)
        token = await token_of(node, "admin", lifetime_ms=60_000)
        assert (await sign_in(client, plain("admin", token))).error_code == 0
        assert (await sign_in_by_scram(client, *ADMIN)).error_code == 0
        assert (await sign_in(client, plain(*ADMIN))).error_code == 0
        found = await sign_in_by_scram(client, *ANN)
        assert (found.error_code, found.error_message) == (
            FAILED,
            "the connection is User:admin's; open another one to be User:ann",
        )
        await settle()
        assert client.transport.is_aborted


@virtual
async def test_scram_in_an_open_cluster_needs_the_right_password() -> None:
    async with cluster_of(Cluster(node_ids=(1,))) as cluster:
        node = cluster.nodes[1]
        await with_scram(node, mode=AccessMode.OFF)
        good = client_of(node)
        assert (await sign_in_by_scram(good, *ANN)).error_code == 0
        # The client would notice: the node could not sign the last message.
        assert (await sign_in_by_scram(client_of(node), "ann", "wrong")).error_code == FAILED
        await node.access.set_mode(AccessMode.REQUIRED)
        assert (await good.call(60, 0)).error_code == 0
