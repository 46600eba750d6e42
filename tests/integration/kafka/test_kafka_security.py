"""Kafka clients of a closed cluster: passwords, tokens, certificates, rights and quotas, over real connections."""

import asyncio
import base64
import contextlib
import json
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.admin import UserScramCredentialDeletion as PythonDeletion
from kafka.admin import UserScramCredentialUpsertion as PythonUpsertion

from loadtest.bench.servers.identities import Authority, CertificateFiles, Issuer
from loadtest.cluster.local_cluster import LocalCluster
from milena import Credentials, Secret
from tests.support.clusters.live_cluster import (
    DEADLINE_S,
    eventually,
    kafka_address,
    running_cluster,
)
from tests.support.http.console import blocks

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[3] / "docs" / "kafka.md").read_text(encoding="utf-8")

PASSWORD = "a password of tests"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM)
REFUSED = (KafkaError._AUTHENTICATION, KafkaError._SSL)
"""Errors after which a client need not try for longer."""
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
    for _ in range(20):
        with contextlib.suppress(KafkaException):
            return len(admin.list_topics(timeout=0.5).brokers)
        admin.poll(0)
        if any(error.code() in REFUSED for error in errors):
            return 0
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


# -- rights ----------------------------------------------------------------------------------------


def api(closed: Closed, line: str, body: object = None) -> Any:
    """A call of the HTTP API as the first user."""
    method, path = line.split(" ")
    header = "Basic " + base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
    asked = urllib.request.Request(
        closed.cluster.nodes[0].url + path,
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"Authorization": header, "Content-Type": "application/json"},
    )
    context = closed.authority.client() if "SSL" in closed.protocol else None
    with urllib.request.urlopen(asked, context=context, timeout=DEADLINE_S) as response:
        return json.loads(response.read() or b"null")


def user(
    closed: Closed, name: str, *rights: tuple[str, str, str], mechanism: str = "PLAIN"
) -> dict[str, object]:
    """The credentials of a new user with these rights: operation, type and name."""
    api(closed, f"PUT /users/{name}", {"password": PASSWORD, "scram": mechanism != "PLAIN"})
    allow(closed, f"User:{name}", *rights)
    return {"sasl.mechanism": mechanism, "sasl.username": name, "sasl.password": PASSWORD}


def allow(closed: Closed, principal: str, *rights: tuple[str, str, str]) -> None:
    cluster_id = api(closed, "GET /metadata")["cluster_id"]
    entries = [
        {
            "principal": principal,
            "operation": operation,
            "resource_type": kind,
            "resource_name": name,
            "pattern_type": "LITERAL",
            "host": "*",
            "permission": "ALLOW",
        }
        for operation, kind, name in rights
    ]
    api(closed, f"POST /v3/clusters/{cluster_id}/acls:batch", {"data": entries})


def topic(closed: Closed, name: str) -> str:
    wanted = {"topic_name": name, "partitions_count": 1, "replication_factor": 1}
    api(closed, "POST /admin/topics", wanted)
    return name


def sent(closed: Closed, given: Mapping[str, object], name: str, value: str) -> KafkaError | None:
    """The error of one record, or None."""
    errors: list[KafkaError | None] = []
    producer = Producer(closed.settings(given) | {"message.timeout.ms": 15_000})
    producer.produce(name, value, on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    (error,) = errors
    return error


def received(closed: Closed, given: Mapping[str, object], name: str, group: str) -> str | int:
    """The first record that a member of a group gets, or the code of its error."""
    settings = {"group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(closed.settings(given) | settings)
    try:
        consumer.subscribe([name])
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                return error.code()
            return (message.value() or b"").decode()
    finally:
        consumer.close()
    raise AssertionError("nothing came")


def test_a_client_above_its_rates_goes_on_after_each_wait(plain: Closed) -> None:
    """The timers of the node's real loop fire a little early: that must not leave a connection unread."""
    name = topic(plain, "slow")
    rights = [("WRITE", "TOPIC", name), ("READ", "TOPIC", name), ("READ", "GROUP", "slow")]
    given = plain.settings(user(plain, "slow", *rights))
    rates = {"producer_byte_rate": 20_000, "consumer_byte_rate": 20_000, "request_rate": 20}
    api(plain, "PUT /quotas", {"user": "slow", "limits": rates})
    # A request without a response within this time ends the connection and fails the record.
    impatient = {"socket.timeout.ms": 5_000, "message.timeout.ms": 5_000, "retries": 0}
    errors: list[KafkaError | None] = []
    producer = Producer(given | impatient)
    for _ in range(20):
        producer.produce(name, bytes(4_000), on_delivery=lambda error, _: errors.append(error))
        producer.flush(DEADLINE_S)
    assert errors == [None] * 20
    consumer = Consumer(given | {"group.id": "slow", "fetch.message.max.bytes": 5_000})
    consumer.assign([TopicPartition(name, 0, 0)])
    try:
        began_s = time.monotonic()
        found = 0
        while found < 20:
            message = consumer.poll(5)
            assert message is not None, f"no record for 5 s after {found}"
            assert message.error() is None
            found += 1
        assert time.monotonic() - began_s < DEADLINE_S
    finally:
        consumer.close()


@pytest.mark.parametrize("name", ["plain", "tls"])
def test_a_user_writes_and_reads_what_it_may(name: str, request: pytest.FixtureRequest) -> None:
    found: Closed = request.getfixturevalue(name)
    orders, secret = topic(found, "orders"), topic(found, "secret")
    shop = user(
        found, "shop", ("READ", "TOPIC", orders), ("WRITE", "TOPIC", orders), ("READ", "GROUP", "g")
    )
    assert sent(found, shop, orders, "v") is None
    refused = sent(found, shop, secret, "v")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert received(found, shop, orders, "g") == "v"
    assert received(found, shop, orders, "other") == KafkaError.GROUP_AUTHORIZATION_FAILED
    topics = AdminClient(found.settings(shop)).list_topics(timeout=10).topics
    assert set(topics) == {orders}


def test_an_idempotent_producer_needs_a_right_and_keeps_its_id(plain: Closed) -> None:
    name = topic(plain, "idempotent")
    writer = user(plain, "writer", ("WRITE", "TOPIC", name))
    assert sent(plain, {**writer, "enable.idempotence": True}, name, "v") is None
    reader = user(plain, "reader", ("READ", "TOPIC", name))
    producer = Producer(plain.settings(reader) | {"enable.idempotence": True})
    with pytest.raises((KafkaException, SystemError)) as caught:
        # The client ends with the error once it has asked for an id.
        eventually(lambda: producer.poll(0.1) < 0)
    assert "Cluster authorization failed" in f"{caught.value} {caught.value.__cause__}"


def test_a_token_of_the_cluster_or_of_the_issuer_signs_in(plain: Closed, tls: Closed) -> None:
    for found in (plain, tls):
        made = api(found, "POST /users/admin/tokens", {"lifetime_ms": 600_000})
        token = str(made["token"])
        assert brokers(found, {**ADMIN, "sasl.password": token}) == 1
        assert brokers(found, oauth(token)) == 1
        assert brokers(found, oauth(found.issuer.token("ann"))) == 1
        assert brokers(found, oauth(token[:-1] + ("a" if token[-1] != "a" else "b"))) == 0
        api(found, f"DELETE /users/admin/tokens/{made['token_id']}")
        assert brokers(found, oauth(token)) == 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_signs_in_writes_and_reads(plain: Closed, tls: Closed, mechanism: str) -> None:
    for found in (plain, tls):
        name = topic(found, f"python-{mechanism}")
        rights = [("READ", "TOPIC", name), ("WRITE", "TOPIC", name)]
        user(found, "python", *rights, mechanism=mechanism)
        settings: dict[str, Any] = {
            "bootstrap_servers": found.address,
            "security_protocol": found.protocol,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "python",
            "sasl_plain_password": PASSWORD,
        }
        if found is tls:
            settings["ssl_cafile"] = str(found.authority.file)
        producer = KafkaProducer(**settings)
        producer.send(name, b"v").get(DEADLINE_S)
        producer.close()
        consumer = KafkaConsumer(group_id=None, consumer_timeout_ms=30_000, **settings)
        consumer.assign([PythonPartition(name, 0)])
        consumer.seek_to_beginning()
        assert next(consumer).value == b"v"
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_signs_in_writes_and_reads(plain: Closed, tls: Closed, mechanism: str) -> None:
    async def run(found: Closed) -> bytes | None:
        name = topic(found, f"aio-{mechanism}")
        rights = [("READ", "TOPIC", name), ("WRITE", "TOPIC", name), ("READ", "GROUP", "aio")]
        user(found, "aio", *rights, mechanism=mechanism)
        settings: dict[str, Any] = {
            "bootstrap_servers": found.address,
            "security_protocol": found.protocol,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "aio",
            "sasl_plain_password": PASSWORD,
        }
        if found is tls:
            settings["ssl_context"] = found.authority.client()
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(name, b"v")
        consumer = AIOKafkaConsumer(name, group_id="aio", auto_offset_reset="earliest", **settings)
        async with consumer:
            async with asyncio.timeout(DEADLINE_S):
                return (await consumer.getone()).value

    for found in (plain, tls):
        assert asyncio.run(run(found)) == b"v"


# -- SCRAM -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", SCRAM)
def test_confluent_kafka_writes_and_reads_by_scram(
    plain: Closed, tls: Closed, mechanism: str
) -> None:
    for found in (plain, tls):
        # Clients escape the equals sign in the name.
        who, name = "a=b@example.org", topic(found, f"confluent-{mechanism}")
        rights = [("READ", "TOPIC", name), ("WRITE", "TOPIC", name), ("READ", "GROUP", name)]
        given = user(found, who, *rights, mechanism=mechanism)
        assert sent(found, given, name, "v") is None
        assert received(found, given, name, name) == "v"
        for wrong in ({"sasl.password": "a wrong password"}, {"sasl.username": "nobody"}):
            assert brokers(found, given | wrong) == 0


def test_a_client_of_scram_goes_with_its_password_and_comes_back_with_the_next(
    plain: Closed,
) -> None:
    name = topic(plain, "changed")
    given = user(plain, "changed", ("WRITE", "TOPIC", name), mechanism="SCRAM-SHA-512")
    errors: list[KafkaError] = []
    producer = Producer(plain.settings(given) | {"error_cb": errors.append})
    delivered: list[KafkaError | None] = []
    producer.produce(name, "v", on_delivery=lambda error, _: delivered.append(error))
    producer.flush(DEADLINE_S)
    assert delivered == [None]
    api(plain, "PUT /users/changed", {"password": "the next password"})

    def is_refused() -> bool:
        producer.poll(0.1)
        return any(error.code() == KafkaError._AUTHENTICATION for error in errors)

    eventually(is_refused)
    renewed = given | {"sasl.password": "the next password"}
    assert sent(plain, renewed, name, "w") is None


def test_admin_clients_give_show_and_take_scram_credentials(plain: Closed, tls: Closed) -> None:
    for found in (plain, tls):
        admin = AdminClient(found.settings(ADMIN))
        infos = [
            ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096),
            ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192),
        ]
        changes: list[Any] = [
            UserScramCredentialUpsertion("dora", info, PASSWORD.encode()) for info in infos
        ]
        for future in admin.alter_user_scram_credentials(changes).values():
            future.result(DEADLINE_S)
        shown = admin.describe_user_scram_credentials(["dora"])["dora"].result(DEADLINE_S)
        told = [(one.mechanism, one.iterations) for one in shown.scram_credential_infos]
        assert told == [(one.mechanism, one.iterations) for one in infos]
        assert "dora" in admin.describe_user_scram_credentials().result(DEADLINE_S)
        for mechanism in SCRAM:
            given = {
                "sasl.mechanism": mechanism,
                "sasl.username": "dora",
                "sasl.password": PASSWORD,
            }
            assert brokers(found, given) == 1
        gone = [UserScramCredentialDeletion("dora", one.mechanism) for one in infos]
        admin.alter_user_scram_credentials(gone)["dora"].result(DEADLINE_S)
        assert brokers(found, given) == 0
        absent = admin.describe_user_scram_credentials(["dora"])["dora"]
        with pytest.raises(KafkaException) as caught:
            absent.result(DEADLINE_S)
        assert caught.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND
        few = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4095)
        upserts: list[Any] = [UserScramCredentialUpsertion("dora", few, b"x")]
        with pytest.raises(KafkaException) as caught:
            admin.alter_user_scram_credentials(upserts)["dora"].result(DEADLINE_S)
        assert caught.value.args[0].code() == KafkaError.UNACCEPTABLE_CREDENTIAL


def test_kafka_python_gives_shows_and_takes_scram_credentials(plain: Closed) -> None:
    admin = KafkaAdminClient(
        bootstrap_servers=plain.address,
        security_protocol=plain.protocol,
        sasl_mechanism="PLAIN",
        sasl_plain_username="admin",
        sasl_plain_password=PASSWORD,
    )
    put = PythonUpsertion("paul", "SCRAM-SHA-256", PASSWORD)
    assert admin.alter_user_scram_credentials([put]) == {"paul": None}
    shown = admin.describe_user_scram_credentials(["paul", "nobody"])
    (info,) = shown["paul"]["credential_infos"]
    assert (shown["paul"]["error"], int(info["mechanism"]), info["iterations"]) == (None, 1, 4096)
    assert shown["nobody"]["error"] == "There is no user nobody with SCRAM credentials."
    given = {
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "paul",
        "sasl.password": PASSWORD,
    }
    assert brokers(plain, given) == 1
    gone = PythonDeletion("paul", "SCRAM-SHA-256")
    assert admin.alter_user_scram_credentials([gone]) == {"paul": None}
    told = admin.alter_user_scram_credentials([gone])["paul"]
    assert told == "There is no user paul with SCRAM-SHA-256 credentials."
    admin.close()
    assert brokers(plain, given) == 0


def test_the_program_of_the_docs_runs(plain: Closed, tmp_path: Path) -> None:
    name = topic(plain, "shop-orders")
    rights = [("READ", "TOPIC", name), ("WRITE", "TOPIC", name), ("READ", "GROUP", "shop")]
    user(plain, "docs", *rights)
    made = api(plain, "POST /users/docs/tokens", {})
    (tmp_path / "shop.token").write_text(made["token"])
    (program,) = [text for text in blocks(PAGE, "python") if "sasl.mechanism" in text]
    program = program.replace("127.0.0.1:9092", plain.address).replace('"orders"', f'"{name}"')
    program = program.replace('"sasl.username": "shop"', '"sasl.username": "docs"')
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout == "hello\n", done.stderr
