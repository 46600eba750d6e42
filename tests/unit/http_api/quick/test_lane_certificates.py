"""Certificates over TLS: who comes with one, the usual way and in the lane, and that nobody takes another's place."""

import asyncio
import hashlib
import ssl
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from loadtest.bench.servers.identities import Authority, CertificateFiles
from milena.model.access import AccessMode
from node.config.sources import load_config
from node.process.tls import api_tls
from raft_meta.machine.commands import SetAccessMode
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import ClosedNode
from tests.unit.http_api.quick.test_lane import Client, request
from tests.unit.http_api.quick.test_lane_access import WRITE


class Secured:
    """An API that asks for certificates, and clients for it."""

    def __init__(self, folder: Path, auth: str = "optional") -> None:
        self.authority = Authority(folder)
        own = self.authority.issue("server", "server")
        flags = {
            "tls_cert_file": str(own.certificate),
            "tls_key_file": str(own.key),
            "tls_client_ca_file": str(self.authority.file),
            "tls_client_auth": auth,
        }
        self.tls = api_tls(load_config(None, {}, flags))
        self.node = FakeNode()
        self.node.add_topic("t")
        self.closed = ClosedNode(self.node)
        self.port = 0

    @asynccontextmanager
    async def running(self):
        async with serving(self.node, tls=self.tls) as api:
            self.port = int(api.base_url.rsplit(":", 1)[1])
            yield

    def user(self, name: str) -> CertificateFiles:
        return self.authority.issue(name, name, others=())

    @asynccontextmanager
    async def connected(self, shown: CertificateFiles | None = None):
        tls = self.authority.client(shown)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def statuses(client: Client, sent: bytes, times: int = 1) -> list[str]:
    return [(await client.ask(sent))[0].split()[1] for _ in range(times)]


@pytest.fixture
async def secured(tmp_path):
    found = Secured(tmp_path)
    found.closed.allow("ann", WRITE)
    async with found.running():
        yield found


async def test_a_certificate_lets_in_and_takes_the_lane(secured):
    async with secured.connected(secured.user("ann")) as client:
        assert await statuses(client, request(), 3) == ["200"] * 3
    assert len(secured.node.quick_requests) == 2


async def test_a_head_that_a_certificate_sent_is_nobody_elses(secured):
    ann, bob = secured.user("ann"), secured.user("bob")
    async with (
        secured.connected(ann) as first,
        secured.connected(ann) as again,
        secured.connected(bob) as other,
        secured.connected() as nobody,
    ):
        assert await statuses(first, request(), 3) == ["200"] * 3
        count = len(secured.node.quick_requests)
        assert await statuses(other, request(), 3) == ["403"] * 3
        assert await statuses(nobody, request(), 3) == ["401"] * 3
        assert len(secured.node.quick_requests) == count
        # The same certificate on another connection is the same caller.
        assert await statuses(again, request()) == ["200"]
        assert len(secured.node.quick_requests) == count + 1


async def test_a_certificate_cannot_be_named_by_bytes(secured):
    """What stands for a certificate in the table of heads is public: nobody must get there by sending it."""
    ann = secured.user("ann")
    digest = hashlib.sha256(
        ssl.PEM_cert_to_DER_cert(ann.certificate.read_text(encoding="ascii"))
    ).digest()
    async with secured.connected(ann) as client, secured.connected() as nobody:
        assert await statuses(client, request(), 3) == ["200"] * 3
        count = len(secured.node.quick_requests)
        assert await statuses(nobody, digest + request()) == ["400"]
        assert len(secured.node.quick_requests) == count


async def test_nobodys_head_is_not_a_certificates(secured):
    secured.closed.store.apply(SetAccessMode(access_mode=AccessMode.OFF))
    ann, bob = secured.user("ann"), secured.user("bob")
    async with secured.connected() as nobody, secured.connected(bob) as other:
        assert await statuses(nobody, request(), 3) == ["200"] * 3
        assert await statuses(other, request(), 3) == ["200"] * 3
        secured.closed.store.apply(SetAccessMode(access_mode=AccessMode.REQUIRED))
        assert await statuses(nobody, request(), 2) == ["401"] * 2
        assert await statuses(other, request(), 2) == ["403"] * 2
    async with secured.connected(ann) as client:
        assert await statuses(client, request(), 2) == ["200"] * 2


async def test_a_header_wins_over_the_certificate_in_the_lane_too(secured):
    ann = secured.user("ann")
    secured.closed.user("eve")
    eve = request(f"Authorization: {secured.closed.token('eve')['Authorization']}")
    secured.closed.user("sue", WRITE)
    sue = request(f"Authorization: {secured.closed.token('sue', 'tokensue')['Authorization']}")
    async with secured.connected(ann) as client, secured.connected() as nobody:
        assert await statuses(client, request(), 2) == ["200"] * 2
        assert await statuses(client, eve, 3) == ["403"] * 3
        assert await statuses(client, sue, 3) == ["200"] * 3
        assert await statuses(nobody, sue, 3) == ["200"] * 3
        assert await statuses(client, request("Authorization: Bearer mln_x"), 2) == ["401"] * 2


async def test_what_is_taken_from_a_certificates_user_is_so_for_the_next_request(secured):
    async with secured.connected(secured.user("ann")) as client:
        assert await statuses(client, request(), 3) == ["200"] * 3
        secured.closed.take("ann")
        assert await statuses(client, request(), 2) == ["403"] * 2


async def test_a_certificate_that_ends_does_so_in_the_lane(secured):
    async with secured.connected(secured.user("ann")) as client:
        assert await statuses(client, request(), 3) == ["200"] * 3
        count = len(secured.node.quick_requests)
        secured.node.access.clock.ms = secured.node.access.heard_ms = 1 << 43
        secured.node.callers.attend()
        assert await statuses(client, request(), 2) == ["401"] * 2
    assert len(secured.node.quick_requests) == count


async def test_a_strangers_certificate_does_not_get_in_though_none_would(secured, tmp_path):
    (tmp_path / "strangers").mkdir()
    # It bears the same name as the authority that is trusted.
    stranger = Authority(tmp_path / "strangers").issue("ann", "ann", others=())
    probe = b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"
    async with secured.connected() as nobody:
        assert await statuses(nobody, probe) == ["200"]
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        async with secured.connected(stranger) as client:
            await statuses(client, probe)


@pytest.mark.parametrize(("auth", "with_one"), [("none", "401"), ("required", "200")])
async def test_how_much_is_asked_of_clients_is_set(tmp_path, auth, with_one):
    found = Secured(tmp_path, auth)
    found.closed.allow("ann", WRITE)
    async with found.running():
        async with found.connected(found.user("ann")) as client:
            assert await statuses(client, request(), 2) == [with_one] * 2
        if auth == "required":
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                async with found.connected() as nobody:
                    await statuses(nobody, request())


def test_certificates_are_seen_on_the_loop_that_a_node_runs_on(tmp_path):
    async def run() -> None:
        found = Secured(tmp_path)
        found.closed.allow("ann", WRITE)
        async with (
            found.running(),
            found.connected(found.user("ann")) as client,
            found.connected() as nobody,
        ):
            assert await statuses(client, request(), 3) == ["200"] * 3
            assert await statuses(nobody, request(), 3) == ["401"] * 3

    uvloop.run(asyncio.wait_for(run(), 30))
