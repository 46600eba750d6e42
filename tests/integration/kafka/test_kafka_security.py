"""Kafka clients of a closed cluster: passwords, tokens, certificates, rights and quotas, over real connections."""

import contextlib
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from loadtest.bench.servers.identities import Authority, CertificateFiles, Issuer
from loadtest.cluster.local_cluster import LocalCluster
from milena import Credentials, Secret
from tests.support.clusters.live_cluster import (
    eventually,
    kafka_address,
    running_cluster,
)

pytestmark = pytest.mark.integration

PASSWORD = "a password of tests"
ADMIN = {"sasl.mechanism": "PLAIN", "sasl.username": "admin", "sasl.password": PASSWORD}


@dataclass(frozen=True)
class Closed:
    """A closed cluster of one node, and the files of its certificates."""

    cluster: LocalCluster
    authority: Authority
    issuer: Issuer
    folder: Path
    protocol: str

    @property
    def address(self) -> str:
        # The certificate has this name.
        return kafka_address(self.cluster.nodes[0])

    def settings(self, given: Mapping[str, object]) -> dict[str, object]:
        """Settings of librdkafka: those for this cluster, and the credentials."""
        found: dict[str, object] = {
            "bootstrap.servers": self.address,
            "security.protocol": self.protocol,
            "socket.timeout.ms": 20_000,
        }
        if "SSL" in self.protocol:
            found["ssl.ca.location"] = str(self.authority.file)
        return {**found, **given}

    def identity(self, name: str) -> CertificateFiles:
        return self.authority.issue(name, name, others=())


@contextlib.contextmanager
def closed(folder: Path, *, has_tls: bool) -> Iterator[Closed]:
    (folder / "password").write_text(f"{PASSWORD}\n")
    authority, issuer = Authority(folder), Issuer(folder)
    settings: dict[str, object] = {
        "admin_password_file": folder / "password",
        "kafka_listen": "127.0.0.1:0",
        "oidc_issuer": Issuer.NAME,
        "oidc_audience": Issuer.AUDIENCE,
        "oidc_jwks_file": issuer.file,
        "bad_credentials_delay_ms": 100,
    }
    credentials = Credentials(user="admin", password=Secret(PASSWORD))
    if has_tls:
        server = authority.issue("server", "server")
        settings |= {
            "tls_cert_file": server.certificate,
            "tls_key_file": server.key,
            "tls_client_ca_file": authority.file,
            "tls_client_auth": "optional",
        }
        credentials = Credentials(user="admin", password=Secret(PASSWORD), ca=str(authority.file))
    with running_cluster(
        folder / "nodes", node_count=1, credentials=credentials, **settings
    ) as cluster:
        protocol = "SASL_SSL" if has_tls else "SASL_PLAINTEXT"
        found = Closed(cluster, authority, issuer, folder, protocol)
        eventually(lambda: found.address)
        yield found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    with closed(tmp_path_factory.mktemp("plain"), has_tls=False) as found:
        yield found


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    with closed(tmp_path_factory.mktemp("tls"), has_tls=True) as found:
        yield found


def brokers(closed: Closed, given: Mapping[str, object]) -> int:
    """The number of brokers that a client sees; 0 if it is not let in."""
    errors: list[KafkaError] = []
    admin = AdminClient(closed.settings(given) | {"error_cb": errors.append})
    try:
        return len(admin.list_topics(timeout=10).brokers)
    except KafkaException:
        return 0


def oauth(token: str) -> dict[str, object]:
    def give(_: object) -> tuple[str, float]:
        return token, time.time() + 3600

    return {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": give}


@pytest.mark.parametrize("name", ["plain", "tls"])
def test_confluent_kafka_signs_in_with_a_password(
    name: str, request: pytest.FixtureRequest
) -> None:
    found: Closed = request.getfixturevalue(name)
    assert brokers(found, ADMIN) == 1
    assert brokers(found, {**ADMIN, "sasl.password": "a wrong password"}) == 0
    assert brokers(found, {**ADMIN, "sasl.username": "nobody"}) == 0


def test_a_client_without_credentials_is_not_let_in(plain: Closed, tls: Closed) -> None:
    assert brokers(plain, {"security.protocol": "PLAINTEXT"}) == 0
    assert brokers(tls, {"security.protocol": "SSL"}) == 0
    assert brokers(tls, {"security.protocol": "PLAINTEXT"}) == 0


def test_a_client_that_does_not_know_the_authority_does_not_connect(tls: Closed) -> None:
    settings = tls.settings(ADMIN)
    del settings["ssl.ca.location"]
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=5)


def test_a_certificate_names_the_client(tls: Closed) -> None:
    shown = tls.identity("admin")
    given = {
        "security.protocol": "SSL",
        "ssl.certificate.location": str(shown.certificate),
        "ssl.key.location": str(shown.key),
    }
    assert brokers(tls, given) == 1
    (tls.folder / "other").mkdir(exist_ok=True)
    stranger = Authority(tls.folder / "other").issue("admin", "admin", others=())
    forged = {
        "ssl.certificate.location": str(stranger.certificate),
        "ssl.key.location": str(stranger.key),
    }
    assert brokers(tls, given | forged) == 0


def test_a_renewed_certificate_is_shown_without_a_restart(tls: Closed) -> None:
    host, port = tls.address.split(":")
    before = ssl.get_server_certificate((host, int(port)))
    tls.authority.issue("server", "server")
    eventually(lambda: ssl.get_server_certificate((host, int(port))) != before)
    assert brokers(tls, ADMIN) == 1
