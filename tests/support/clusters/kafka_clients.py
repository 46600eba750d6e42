"""Kafka clients in memory: frames into a connection of a node, and what comes out of it."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from kafka.net.sasl.scram import ScramClient

from http_api.access.group_shares import GroupShares
from http_api.access.port import RequestedToken
from http_api.ports.node import ApiLimits
from http_api.serving.in_flight import RequestBytes
from http_api.serving.quotas import Quotas
from milena.model.access import (
    ANY_HOST,
    AccessMode,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    ScramMechanism,
)
from milena.model.secret import Secret
from node.assembly import Assembly
from node.kafka.apis.api import EXTERNAL, Api, KafkaAddress, KafkaServices
from node.kafka.apis.registry import APIS
from node.kafka.connection import KafkaConnection, KafkaPatience
from node.kafka.forwarding import FORWARDED
from node.kafka.listener import PATIENCE, KafkaListener
from node.kafka.wire import cold
from raft_meta.machine.image import Acl
from tests.support.clusters.nodes import Cluster

CLIENT = "test"


def request_frame(
    key: int, version: int, body: bytes, *, correlation_id: int = 1, client_id: str | None = CLIENT
) -> bytes:
    """A request as it goes over the wire, with its size."""
    text = (
        b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    )
    tags = b"\0" if version >= cold.flexible_from(key) else b""
    frame = struct.pack(">hhi", key, version, correlation_id) + text + tags + body
    return struct.pack(">i", len(frame)) + frame


class FakeTransport(asyncio.Transport):
    """A transport that keeps what a connection sends."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__()
        self.host = host
        self.sent = bytearray()
        self.is_aborted = False
        self.is_paused = False
        self.protocol: KafkaConnection | None = None

    def write(self, data: Any) -> None:
        self.sent += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.sent += data

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        if not self.is_aborted:
            self.is_aborted = True
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def close(self) -> None:
        self.abort()

    def pause_reading(self) -> None:
        assert not self.is_paused, "it is paused already"
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused, "it reads already"
        self.is_paused = False

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.host, 40_000) if name == "peername" else default


class KafkaClient:
    """One connection to a node."""

    def __init__(self, connection: KafkaConnection, host: str = "127.0.0.1") -> None:
        self.connection = connection
        self.transport = FakeTransport(host)
        self.transport.protocol = connection
        connection.connection_made(self.transport)
        self._next = 0

    def send(self, data: bytes) -> None:
        """Let bytes arrive, unless the node does not read."""
        assert not self.transport.is_paused, "the node does not read"
        self.connection.data_received(data)

    def ask(self, key: int, version: int, body: bytes) -> int:
        """Send a request; return its correlation id."""
        self._next += 1
        self.send(request_frame(key, version, body, correlation_id=self._next))
        return self._next

    def answers(self) -> list[tuple[int, bytes]]:
        """Take the responses that were sent: correlation id and the rest."""
        found, at, sent = [], 0, bytes(self.transport.sent)
        while at < len(sent):
            size, correlation_id = struct.unpack_from(">ii", sent, at)
            found.append((correlation_id, sent[at + 8 : at + 4 + size]))
            at += 4 + size
        assert at == len(sent), "half a response"
        self.transport.sent.clear()
        return found

    async def call(self, key: int, version: int, /, **fields: Any) -> Any:
        """Send a request and return its response, as kafka-python decodes it."""
        sent = self.ask(key, version, cold.encode_request(key, version, fields))
        await self.connection.idle()
        assert not self.transport.is_aborted, "the node closed the connection"
        ((correlation_id, body),) = self.answers()
        assert correlation_id == sent
        return decoded(key, version, body)


async def sign_in(
    client: KafkaClient, message: bytes, mechanism: str = "PLAIN", *, version: int = 2
) -> Any:
    """Authenticate; return the response to the message, which may be a refusal."""
    assert (await client.call(17, 1, mechanism=mechanism)).error_code == 0
    return await authenticate(client, message, version=version)


async def authenticate(client: KafkaClient, message: bytes, *, version: int = 2) -> Any:
    """Send a message of SASL; return the response, behind which the connection may end."""
    sent = client.ask(36, version, cold.encode_request(36, version, {"auth_bytes": message}))
    await client.connection.idle()
    ((correlation_id, body),) = client.answers()
    assert correlation_id == sent
    return decoded(36, version, body)


def plain(user: str, password: str) -> bytes:
    """A message of SASL PLAIN."""
    return f"\0{user}\0{password}".encode()


async def sign_in_by_scram(
    client: KafkaClient,
    user: str,
    password: str,
    mechanism: ScramMechanism = ScramMechanism.SHA_256,
    *,
    version: int = 2,
) -> Any:
    """Authenticate as kafka-python does; return the last response, which may be a refusal."""
    scram = ScramClient(user, password, mechanism)
    found = await sign_in(client, scram.first_message(), mechanism, version=version)
    if found.error_code == 0:
        assert found.session_lifetime_ms in (0, None)
        scram.process_server_first_message(found.auth_bytes)
        found = await authenticate(client, scram.final_message(), version=version)
    if found.error_code == 0:
        scram.process_server_final_message(found.auth_bytes)
    return found


def decoded(key: int, version: int, body: bytes) -> Any:
    """A response as kafka-python decodes it; ``body`` begins behind the correlation id."""
    if version >= cold.flexible_from(key) and key != 18:
        assert body[0] == 0, "no tagged field is in the header"
        body = body[1:]
    return cold.decode_response(key, version, body)


def services_of(node: Assembly) -> KafkaServices:
    """The parts of a node that the interface uses."""
    return node.kafka_services(
        quotas=Quotas(node.config.limits, lambda: node.metadata.image.quotas),
        group_shares=GroupShares(),
        has_tls=False,
    )


def listener_of(
    node: Assembly,
    *,
    limits: ApiLimits | None = None,
    connections_max: int = 100,
    request_bytes: RequestBytes | None = None,
    patience: KafkaPatience = PATIENCE,
    apis: Mapping[int, Api] = APIS,
    address: Callable[[], KafkaAddress] = lambda: KafkaAddress("127.0.0.1", 9092),
    external: Callable[[], KafkaAddress] | None = None,
) -> KafkaListener:
    """The Kafka interface of a node that listens nowhere."""
    services = services_of(node)
    if limits is not None:
        services = KafkaServices(
            **{name: getattr(services, name) for name in services.__dataclass_fields__}
            | {"limits": limits}
        )
    return KafkaListener(
        services=services,
        membership=node.membership,
        contained=node.counts.contained,
        counts=node.counts.kafka,
        addresses=(address,) if external is None else (address, external),
        peers=node._ports.peers,
        connections_max=connections_max,
        request_bytes=request_bytes,
        patience=patience,
        apis=apis,
    )


def client_of(node: Assembly, **options: Any) -> KafkaClient:
    """A client of a node."""
    return KafkaClient(listener_of(node, **options).connection())


ADMIN, ANN, BOB = ("admin", "secret-of-admin"), ("ann", "secret-of-ann"), ("bob", "secret-of-bob")
"""Users of a closed cluster and their passwords."""


async def close_cluster(node: Assembly, *acls: Acl, mode: AccessMode = AccessMode.REQUIRED) -> None:
    """Create a superuser and two users without rights but those in the entries, and ask for credentials."""
    for name, password in (ADMIN, ANN, BOB):
        await node.access.put_user(
            name,
            password=Secret(password),
            is_superuser=name == ADMIN[0],
            keeps_previous=False,
        )
    if acls:
        await node.access.add_acls(acls)
    await node.access.set_mode(mode)


async def token_of(node: Assembly, user: str, *, lifetime_ms: int | None = None) -> str:
    """A new token of the user."""
    wanted = RequestedToken(note="", grants=(), lifetime_ms=lifetime_ms, expires_ms_max=0)
    _, secret = await node.access.create_token(user, wanted)
    return secret.reveal()


def acl(user: str, operation: Operation, kind: ResourceType, name: str) -> Acl:
    """An entry that allows the user the operation on one resource."""
    return Acl(
        principal=f"User:{user}",
        resource_type=kind,
        pattern_type=PatternType.LITERAL,
        name=name,
        operation=operation,
        permission=Permission.ALLOW,
        host=ANY_HOST,
    )


@asynccontextmanager
async def clients_of(
    cluster: Cluster, *node_ids: int, external: int | None = None, is_shared: bool = False
) -> AsyncIterator[dict[int, KafkaClient]]:
    """Clients of these nodes, which have the interface and have told the others.

    ``external``: the node that listens for clients outside, too; its client (0) is one of those. ``is_shared``: all
    nodes have the same address.
    """
    outside = KafkaAddress("outside.example.org", 9094, EXTERNAL)
    listeners = {
        node_id: listener_of(
            cluster.nodes[node_id],
            address=partial(KafkaAddress, "lb.example.org", 9092, is_shared=True)
            if is_shared
            else partial(KafkaAddress, "127.0.0.1", 9091 + node_id),
            external=(lambda: outside) if node_id == external else None,
        )
        for node_id in node_ids
    }
    for node_id, listener in listeners.items():
        cluster.network.handlers[node_id][FORWARDED.name] = listener.forwarding.on_request
    tasks = [asyncio.create_task(listener.advertise()) for listener in listeners.values()]
    await cluster.until(
        lambda: all(
            node.metadata.image.brokers[node_id].kafka_addresses
            for node in cluster.nodes.values()
            for node_id in node_ids
        )
    )
    clients = {i: KafkaClient(listener.connection()) for i, listener in listeners.items()}
    if external is not None:
        clients[0] = KafkaClient(listeners[external].connection(1))
    try:
        yield clients
    finally:
        for task in tasks:
            task.cancel()
