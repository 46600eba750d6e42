"""Contexts from files, refusals that name the file, renewal, and peers that trust one authority."""

import asyncio
import json
import ssl
from pathlib import Path

import pytest
import uvloop

from milena.model.errors import StartupError
from node.config.options import NodeConfig
from node.config.sources import load_config
from node.peers.port import PeerChannel, PeerClient, PeerListener, PeerServer, PeerUnreachableError
from node.process.tls import PeerTls, api_tls, peer_tls, watches_of
from raft_meta.consensus.frames import PeerIdentity
from tests.support.time.virtual_time import settle

FILES = Path(__file__).parents[3] / "data" / "tls"


async def plain_answer(context: ssl.SSLContext, request: bytes) -> bytes:
    """The bytes that a server with this context sends to a client without TLS."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n") if b"HTTP" in request else b""
            writer.write_eof()
            return head + await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
            await settle()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_plain_http_on_the_port_of_https_gets_a_sentence(run) -> None:
    context = api_tls(config("cluster"))
    assert context is not None
    renewed = api_tls(config("cluster"))
    assert renewed is not None
    for _ in range(2):
        answer = run(plain_answer(context, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert f"Content-Length: {len(body)}".encode() in head
        assert (
            json.loads(body)["message"] == "This port speaks TLS: use https:// in place of http://."
        )
        context.renew(renewed)
    # A TLS alert at most: these bytes are neither TLS nor a request.
    assert len(run(plain_answer(context, b"\x00\x01garbage\r\n\r\n"))) < 10
    between = peers("cluster").server
    with pytest.raises(asyncio.IncompleteReadError):
        run(plain_answer(between, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))


def config(name: str, authority: str | None = None) -> NodeConfig:
    flags: dict[str, object] = {}
    for prefix in ("", "peer_"):
        flags[f"{prefix}tls_cert_file"] = str(FILES / f"{name}.pem")
        flags[f"{prefix}tls_key_file"] = str(FILES / f"{name}.key")
    flags["peer_tls_ca_file"] = str(FILES / f"{authority or name}-ca.pem")
    return load_config(None, {}, flags)


def peers(name: str, authority: str | None = None) -> PeerTls:
    tls = peer_tls(config(name, authority))
    assert tls is not None
    return tls


def identity(node_id: int) -> PeerIdentity:
    return PeerIdentity(node_id=node_id, cluster_id="c", is_voter=True)


async def ask(
    server_tls: PeerTls | None,
    client_tls: PeerTls | None,
    host: str = "127.0.0.1",
    *,
    verifies: str = "",
) -> bytes:
    """``verifies``: which end looks at ids in certificates, ``server`` or ``client``."""
    server = PeerServer()
    server.register("echo", lambda peer, fields, body: (fields, [body]))
    listener = PeerListener(
        server=server,
        identity=lambda: identity(1),
        secret=b"",
        on_raft_socket=lambda connection: connection.close(),
        tls=server_tls and server_tls.server,
        verifies_id=verifies == "server",
    )
    await listener.start("127.0.0.1", 0)
    client = PeerClient(
        identity=lambda: identity(2),
        secret=b"",
        resolve=lambda _: (host, listener.port),
        tls=client_tls and client_tls.client,
        verifies_id=verifies == "client",
    )
    try:
        sent = bytes(1 << 20)
        _, body = await client.call(
            1, "echo", {}, [sent], timeout_ms=5_000, channel=PeerChannel.FETCH
        )
        assert body == sent
        return body[:1]
    finally:
        await client.close()
        await listener.stop()


async def test_peers_with_one_authority_talk():
    assert await ask(peers("cluster"), peers("cluster")) == b"\0"


def test_peers_talk_under_tls_on_the_loop_that_a_node_runs_on():
    uvloop.run(asyncio.wait_for(ask(peers("cluster"), peers("cluster")), 10))


async def test_a_dialer_whom_the_authority_did_not_sign_is_refused():
    with pytest.raises(PeerUnreachableError):
        await ask(peers("cluster"), peers("stranger", authority="cluster"))


async def test_a_listener_whom_the_authority_did_not_sign_is_refused():
    with pytest.raises(PeerUnreachableError):
        await ask(peers("stranger", authority="cluster"), peers("cluster"))


async def test_a_certificate_of_another_name_is_refused():
    with pytest.raises(PeerUnreachableError, match=r"127\.0\.0\.2"):
        await ask(peers("cluster"), peers("cluster"), host="127.0.0.2")


def test_without_files_there_is_no_tls():
    assert api_tls(NodeConfig()) is None
    assert peer_tls(NodeConfig()) is None
    assert watches_of(NodeConfig(), None, None) == ()


def test_clients_of_the_api_are_asked_for_a_certificate_only_when_an_authority_is_named():
    plain = api_tls(config("cluster"))
    assert plain is not None
    assert plain.verify_mode is ssl.CERT_NONE
    flags = {
        "tls_cert_file": str(FILES / "cluster.pem"),
        "tls_key_file": str(FILES / "cluster.key"),
        "tls_client_ca_file": str(FILES / "cluster-ca.pem"),
    }
    strict = api_tls(load_config(None, {}, flags))
    assert strict is not None
    assert strict.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            {"tls_cert_file": "none.pem", "tls_key_file": "none.key"},
            "tls_cert_file none.pem and tls_key_file none.key: No such file or directory$",
        ),
        (
            {"tls_cert_file": str(FILES / "README.md"), "tls_key_file": str(FILES / "README.md")},
            "README.md: these are not a certificate and its unencrypted key; give PEM files$",
        ),
        (
            {
                "tls_cert_file": str(FILES / "cluster.pem"),
                "tls_key_file": str(FILES / "stranger.key"),
            },
            "stranger.key: the key does not belong to the certificate$",
        ),
        (
            {
                "tls_cert_file": str(FILES / "cluster.pem"),
                "tls_key_file": str(FILES / "cluster.key"),
                "tls_client_ca_file": str(FILES / "README.md"),
            },
            "tls_client_ca_file .*README.md: the file holds no certificate; give a PEM file$",
        ),
    ],
)
def test_a_file_that_does_not_serve_is_refused_by_name(flags: dict[str, object], said: str):
    with pytest.raises(StartupError, match=said):
        api_tls(load_config(None, {}, flags))


def test_every_pair_of_files_in_use_is_watched():
    settings = config("cluster")
    assert len(watches_of(settings, api_tls(settings), peer_tls(settings))) == 2
