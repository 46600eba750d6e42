"""Certificates and authorities that change while a node runs: new connections go by the new ones, in every way."""

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
import uvloop
from cryptography.x509 import DNSName, UniformResourceIdentifier

from loadtest.bench.servers import identities
from loadtest.bench.servers.identities import LOCAL, Authority, CertificateFiles
from milena.model.errors import StartupError
from node.config.options import NodeConfig
from node.config.sources import load_config
from node.peers.port import PeerUnreachableError
from node.process.tls import CertificateWatch, PeerTls, api_tls, peer_tls, watches_of
from tests.support.http.api_server import serving
from tests.unit.http_api.quick.test_lane import Client
from tests.unit.node.process.test_tls import ask

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
PROBE = b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"
REFUSALS = (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)


class Files:
    """The files of a node, which a test gives another content."""

    def __init__(self, folder: Path) -> None:
        self.own = CertificateFiles(folder / "tls.crt", folder / "tls.key")
        self.authority = folder / "ca.crt"

    def take(self, authority: Authority, shown: CertificateFiles) -> None:
        shown.copy_to(self.own)
        self.authority.write_bytes(authority.file.read_bytes())

    def config(self, prefix: str, authority: str, **more: object):
        flags = {
            f"{prefix}tls_cert_file": str(self.own.certificate),
            f"{prefix}tls_key_file": str(self.own.key),
            authority: str(self.authority),
            **more,
        }
        return load_config(None, {}, flags)


def make_authority(folder: Path, name: str) -> Authority:
    (folder / name).mkdir()
    return Authority(folder / name, name)


class Changing:
    """An API that asks clients for certificates of an authority, of which there are two, the old and the new."""

    def __init__(self, folder: Path, **more: object) -> None:
        self.old, self.new = (make_authority(folder, name) for name in ("old", "new"))
        self.files = Files(folder)
        self.server = {a: a.issue("server", "server") for a in (self.old, self.new)}
        self.ann = {a: a.issue("ann", "ann", others=()) for a in (self.old, self.new)}
        self.files.take(self.old, self.server[self.old])
        config = self.files.config("", "tls_client_ca_file", **more)
        found = api_tls(config)
        assert found is not None
        self.tls = found
        (self.watch,) = watches_of(config, self.tls, None)

    def renew(self) -> None:
        self.files.take(self.new, self.server[self.new])
        assert self.watch.maybe_reload()

    def client(self, authority: Authority) -> ssl.SSLContext:
        return authority.client(self.ann[authority])


def shake(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a connection in memory, with the server's tickets taken in."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(down, up, server_hostname="localhost", session=session),
        server.wrap_bio(up, down, server_side=True),
    )
    left = list(ends)
    for _ in range(10):
        for end in list(left):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            left.remove(end)
    assert not left
    ends[1].write(b"x")
    assert ends[0].read() == b"x"
    return ends


def test_a_renewed_authority_is_believed_and_the_old_one_is_not(tmp_path):
    changing = Changing(tmp_path)
    old, new = changing.client(changing.old), changing.client(changing.new)
    assert shake(changing.tls, old)
    with pytest.raises(ssl.SSLError):
        shake(changing.tls, new)
    changing.renew()
    assert shake(changing.tls, new)
    # Nor does who trusts the new server get in by the old authority's certificate.
    mixed = changing.new.client(changing.ann[changing.old])
    mixed.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake(changing.tls, mixed)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_does_not_outlive_the_authority_that_it_was_made_by(tmp_path, version):
    changing = Changing(tmp_path)
    client = ssl.create_default_context()
    client.maximum_version = client.minimum_version = version
    for authority in (changing.old, changing.new):
        client.load_verify_locations(authority.file)
    shown = changing.ann[changing.old]
    client.load_cert_chain(shown.certificate, shown.key)
    made, _ = shake(changing.tls, client)
    again, _ = shake(changing.tls, client, made.session)
    # As long as nothing changes a session saves a handshake; that is what must come to an end.
    assert again.session_reused
    changing.renew()
    with pytest.raises(ssl.SSLError):
        shake(changing.tls, client, again.session)


def test_what_does_not_fit_is_not_taken(tmp_path, caplog):
    changing = Changing(tmp_path)
    client, files = changing.client(changing.old), changing.files
    assert not changing.watch.maybe_reload()

    def half_written() -> None:
        assert not changing.watch.maybe_reload()
        assert shake(changing.tls, client)

    files.own.certificate.write_bytes(changing.server[changing.new].certificate.read_bytes())
    half_written()
    files.own.key.write_bytes(changing.server[changing.new].key.read_bytes())
    files.authority.write_bytes(b"")
    half_written()
    files.authority.write_bytes(changing.new.file.read_bytes()[:100])
    half_written()
    assert any("tls_client_ca_file" in line for line in caplog.messages)
    files.authority.unlink()
    half_written()
    files.authority.write_bytes(changing.new.file.read_bytes())
    assert changing.watch.maybe_reload()
    assert not changing.watch.maybe_reload()
    assert shake(changing.tls, changing.client(changing.new))


def test_the_authority_alone_may_change(tmp_path):
    changing = Changing(tmp_path)
    mixed = changing.old.client(changing.ann[changing.new])
    mixed.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake(changing.tls, mixed)
    both = changing.old.file.read_bytes() + changing.new.file.read_bytes()
    changing.files.authority.write_bytes(both)
    assert changing.watch.maybe_reload()
    assert shake(changing.tls, mixed)
    assert shake(changing.tls, changing.client(changing.old))


def test_all_ends_change_or_none(tmp_path):
    authority = make_authority(tmp_path, "old")
    files = Files(tmp_path)
    files.take(authority, authority.issue("server", "server"))
    found = peer_tls(files.config("peer_", "peer_tls_ca_file"))
    assert found is not None
    made = []

    def make():
        if len(made) < 2:
            made.append(None)
            raise StartupError("half written")
        return [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)]

    watch = CertificateWatch([files.authority], [found.server, found.client], make)
    files.authority.write_bytes(b"another")
    assert [watch.maybe_reload() for _ in range(4)] == [False, False, True, False]


async def probe(port: int, tls: ssl.SSLContext, *, sni: str | None = "localhost") -> str:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname=sni or "127.0.0.1"
    )
    try:
        return (await Client(reader, writer).ask(PROBE))[0].split()[1]
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def change_a_live_api(folder: Path) -> None:
    changing = Changing(folder, tls_client_auth="required")
    old, new = changing.client(changing.old), changing.client(changing.new)
    async with serving(tls=changing.tls) as api:
        port = int(api.base_url.rsplit(":", 1)[1])
        # 127.0.0.1 is an address, which SNI does not carry.
        for sni in ("localhost", None):
            assert await probe(port, old, sni=sni) == "200"
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=old)
        lasting = Client(reader, writer)
        assert (await lasting.ask(PROBE))[0].split()[1] == "200"
        changing.renew()
        for sni in ("localhost", None):
            assert await probe(port, new, sni=sni) == "200"
            with pytest.raises(REFUSALS):
                await probe(port, old, sni=sni)
            with pytest.raises(REFUSALS):
                await probe(port, changing.new.client(changing.ann[changing.old]), sni=sni)
        assert (await lasting.ask(PROBE))[0].split()[1] == "200"
        writer.close()


async def test_a_live_api_changes_its_authority(tmp_path):
    await change_a_live_api(tmp_path)


def test_a_live_api_changes_its_authority_on_the_loop_that_a_node_runs_on(tmp_path):
    uvloop.run(asyncio.wait_for(change_a_live_api(tmp_path), 30))


class Peers:
    """Two nodes with files of their own."""

    def __init__(self, folder: Path) -> None:
        self.old, self.new = (make_authority(folder, name) for name in ("old", "new"))
        self.files, self.tls, self.watches = [], [], []
        for name in ("one", "two"):
            (folder / name).mkdir()
            files = Files(folder / name)
            files.take(self.old, self.old.issue(name, name))
            config = files.config("peer_", "peer_tls_ca_file")
            found = peer_tls(config)
            assert found is not None
            self.files.append(files)
            self.tls.append(found)
            self.watches += watches_of(config, None, found)

    def renew(self, number: int) -> None:
        self.files[number].take(self.new, self.new.issue(f"renewed{number}", "renewed"))
        assert self.watches[number].maybe_reload()


async def change_live_peers(folder: Path) -> None:
    peers = Peers(folder)
    assert await ask(*peers.tls) == b"\0"
    for first, second in ((0, 1), (1, 0)):
        peers = Peers(folder / f"from{first}")
        peers.renew(first)
        with pytest.raises(PeerUnreachableError):
            await ask(*peers.tls)
        peers.renew(second)
        assert await ask(*peers.tls) == b"\0"
        assert await ask(*reversed(peers.tls)) == b"\0"


@pytest.fixture
def folder(tmp_path):
    for name in ("from0", "from1"):
        (tmp_path / name).mkdir()
    return tmp_path


async def test_live_peers_change_their_authority(folder):
    await change_live_peers(folder)


def test_live_peers_change_their_authority_on_the_loop_that_a_node_runs_on(folder):
    uvloop.run(asyncio.wait_for(change_live_peers(folder), 30))


# -- peers that are who they say ---------------------------------------------------------------------


def certified(authority: Authority, folder: Path, name: str, *names) -> PeerTls:
    """The peers of ``test_tls.ask`` are node 1, which listens, and node 2."""
    (folder / name).mkdir()
    files = Files(folder / name)
    files.take(authority, authority.issue(name, name, others=[*LOCAL, *names]))
    found = peer_tls(files.config("peer_", "peer_tls_ca_file"))
    assert found is not None
    return found


@pytest.mark.parametrize("verifies", ["server", "client"])
async def test_a_peer_must_show_a_certificate_of_its_own_id(tmp_path, verifies):
    authority = make_authority(tmp_path, "authority")
    node = {
        1: certified(authority, tmp_path, "n1", DNSName("node-1")),
        2: certified(authority, tmp_path, "n2", UniformResourceIdentifier("milena:node:2")),
        3: certified(authority, tmp_path, "n3", DNSName("node-3")),
        0: certified(authority, tmp_path, "n0"),
    }
    assert await ask(node[1], node[2], verifies=verifies) == b"\0"
    for other in (3, 0):
        pair = (node[1], node[other]) if verifies == "server" else (node[other], node[2])
        with pytest.raises(PeerUnreachableError) as caught:
            await ask(*pair, verifies=verifies)
        if verifies == "client":
            assert "says that it is node 1, and its certificate is for" in caught.value.message
        assert await ask(*pair) == b"\0"


def test_ids_are_looked_for_in_certificates_alone():
    with pytest.raises(StartupError, match="peer_tls_verify_id needs the peer_tls_"):
        load_config(None, {}, {"peer_tls_verify_id": "true"})


FILES = {"tls_cert_file", "tls_client_ca_file", "peer_tls_cert_file", "peer_tls_ca_file"}


def test_the_expiry_of_every_certificate_in_use_is_known_and_follows_a_renewal(
    tmp_path, monkeypatch
):
    def authority_until(name: str, year: int) -> Authority:
        monkeypatch.setattr(identities, "UNTIL", datetime(year, 1, 1, tzinfo=UTC))
        return make_authority(tmp_path, name)

    old = authority_until("old", 2090)
    monkeypatch.setattr(identities, "UNTIL", datetime(2050, 1, 1, tzinfo=UTC))
    shown = old.issue("server", "server")
    files = Files(tmp_path)
    files.take(old, shown)
    config = files.config(
        "",
        "tls_client_ca_file",
        peer_tls_cert_file=str(files.own.certificate),
        peer_tls_key_file=str(files.own.key),
        peer_tls_ca_file=str(files.authority),
    )

    def years() -> dict[str, int]:
        return {
            name: datetime.fromtimestamp(at_s, UTC).year
            for watch in watches
            for name, at_s in watch.expiry_s.items()
        }

    watches = watches_of(config, api_tls(config), peer_tls(config))
    assert years() == {name: 2090 if "ca" in name else 2050 for name in FILES}
    # An option that names another file with certificates needs a name here, too.
    options = {name for name in vars(NodeConfig)["__dataclass_fields__"] if "tls" in name}
    assert {n for n in options if n.endswith("_file") and "key" not in n} == FILES
    # A bundle of authorities ends with the first of them.
    new = authority_until("new", 2030)
    files.authority.write_bytes(old.file.read_bytes() + new.file.read_bytes())
    assert all(watch.maybe_reload() for watch in watches)
    assert years() == {name: 2030 if "ca" in name else 2050 for name in FILES}
    # Files that do not fit are not in use.
    files.own.certificate.write_bytes(new.issue("other", "server").certificate.read_bytes())
    assert not any(watch.maybe_reload() for watch in watches)
    assert years() == {name: 2030 if "ca" in name else 2050 for name in FILES}
