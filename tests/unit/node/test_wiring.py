"""How a node is put together: its ids, its end by a broken invariant, and one whole start and stop on loopback."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.x509 import DNSName

from http_api.access.certificates import ClientCertificate
from loadtest.bench.servers.identities import LOCAL, Authority
from milena.disk.os_files import OsFiles
from milena.model.errors import StartupError
from node import wiring
from node.config.kinds import Address
from node.config.options import NodeConfig
from node.wiring import (
    EXIT_FATAL,
    EXIT_REFUSED,
    Node,
    _bind,
    _listen,
    build_node,
    die,
    draw_ids,
)
from storage.replica.data_directory import DataDirectory
from tests.support.http.issuer import AUDIENCE, ISSUER, document, public_jwk
from tests.support.time.fake_clock import WALL_START_MS, FakeClock

ANYWHERE = Address("127.0.0.1", 0)


def config(tmp_path: Path) -> NodeConfig:
    return replace(NodeConfig(), data_dir=tmp_path / "data", listen=ANYWHERE, peer_listen=ANYWHERE)


def test_an_incarnation_is_the_time_of_the_start_and_ids_differ() -> None:
    one, two = draw_ids(FakeClock()), draw_ids(FakeClock())
    assert one.incarnation == WALL_START_MS
    assert one.directory_id != two.directory_id
    assert one.session_ids.getrandbits(64) != two.session_ids.getrandbits(64)


@pytest.mark.parametrize(
    ("error", "code"),
    [(AssertionError("a bug"), EXIT_FATAL), (StartupError("no place here"), EXIT_REFUSED)],
)
def test_a_broken_invariant_ends_the_process_at_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    class GoneError(Exception):
        pass

    codes: list[int] = []

    def leave(number: int) -> None:
        codes.append(number)
        raise GoneError

    monkeypatch.setattr(wiring.os, "_exit", leave)
    monkeypatch.setattr(wiring.logging, "shutdown", lambda: None)
    with pytest.raises(GoneError):
        die(error)
    assert codes == [code]


def test_a_port_where_another_socket_began_to_listen_after_the_bind_is_a_refusal() -> None:
    with _bind(ANYWHERE) as one:
        address = Address("127.0.0.1", one.getsockname()[1])
        with _bind(address) as other:
            _listen(one, address)
            with pytest.raises(StartupError, match=f"cannot listen on {address}: Address already"):
                _listen(other, address)


async def run_once(node: Node, until_ready: bool = True) -> None:
    stop = asyncio.Event()
    await node.start()
    serving = asyncio.create_task(node.serve(stop))
    async with asyncio.timeout(60):
        while until_ready and not node.health.readiness().is_ready:
            await node.metadata.changed(50)
        stop.set()
        await serving


async def test_a_node_starts_serves_and_stops_clean(tmp_path: Path) -> None:
    node = await build_node(config(tmp_path))
    await run_once(node)
    assert node.metadata.image.brokers[1].is_draining
    files = OsFiles()
    directory = DataDirectory.open(files, str(tmp_path / "data"), node_id=1, directory_id="x")
    assert directory.consume_clean_marker()
    assert directory.broker_epoch == node.membership.broker_epoch
    assert directory.cluster_id == node.metadata.image.cluster_id
    directory.close()


async def test_a_node_takes_kafka_clients_until_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        wiring.descriptors, "affordable_connections", lambda wanted, limit: min(wanted, 300)
    )
    node = await build_node(replace(config(tmp_path), kafka_listen=ANYWHERE))
    assert node._connections_max() == node._api_limits().connections_max == 150
    stop = asyncio.Event()
    await node.start()
    serving = asyncio.create_task(node.serve(stop))
    port = node._kafka_sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(60):
        while not node.metadata.image.brokers or (
            node.metadata.image.brokers[1].kafka_address("plain") != ("127.0.0.1", port)
        ):
            await node.metadata.changed(50)
        writer.write(b"\0\0\0\x0a\0\x12\0\0\0\0\0\7\xff\xff")
        assert (await reader.readexactly(8))[4:] == b"\0\0\0\7"
        stop.set()
        await serving
        while await reader.read(1 << 16):
            pass
    writer.close()
    assert node.counts.kafka.connections == 0
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_second_process_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    first = await build_node(config(tmp_path))
    with pytest.raises(StartupError, match="locked"):
        await build_node(config(tmp_path))
    await run_once(first, until_ready=False)


def test_a_taken_address_is_refused_by_name() -> None:
    taken = wiring._bind(ANYWHERE)
    taken.listen()
    port = taken.getsockname()[1]
    with pytest.raises(StartupError, match=f"127.0.0.1:{port}"):
        wiring._bind(Address("127.0.0.1", port))
    taken.close()


async def test_a_node_that_trusts_an_issuer_has_its_keys_and_keeps_them_fresh(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(document(public_jwk("rsa")))
    trusting = replace(
        config(tmp_path), oidc_issuer=ISSUER, oidc_audience=AUDIENCE, oidc_jwks_file=keys
    )
    node = await build_node(trusting)
    assert node.web_tokens is not None
    assert node.web_tokens.keys.keys is not None
    assert "issuer-keys" in node.background()
    await run_once(node)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "issuer-keys"]


async def test_what_is_set_about_certificates_reaches_those_who_look_at_them(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    shown = authority.issue("node", "node", others=[*LOCAL, DNSName("node-1")])
    strict = replace(
        config(tmp_path),
        peer_tls_cert_file=shown.certificate,
        peer_tls_key_file=shown.key,
        peer_tls_ca_file=authority.file,
        peer_tls_verify_id=True,
        tls_principal_rule="DNS:(.+)",
    )
    node = await build_node(strict)
    parts = (node.peer, node.peer_listener, node.quorum._transport._config)
    for part in parts:
        assert getattr(part, "verifies_id", None) or part._verifies_id
    named = ClientCertificate(digest=b"", names=("DNS:ann", "CN:root"), expires_ms=1)
    assert node.callers._certificate_names.user_of(named) == "ann"
    await run_once(node)
