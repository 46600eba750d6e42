"""The listener: accepts connections, bounds them, and tells the cluster where Kafka clients reach this node.

It listens at up to two addresses: one for clients inside, and one for those that reach the brokers under other
addresses. Both share all bounds.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count

from http_api.serving.connections import Connections
from http_api.serving.in_flight import RequestBytes
from http_api.streaming.unsent import UnsentAnswers
from milena.model.contained import ContainedErrors
from milena.model.errors import MilenaError
from node.config.budgets import LASTING_RETRY_MS, LONG_PROPOSE_MS
from node.control.membership import Membership
from node.kafka.apis.api import Api, KafkaAddress, KafkaServices
from node.kafka.apis.registry import APIS
from node.kafka.budget import FrameBudget
from node.kafka.connection import KafkaConnection, KafkaPatience, ListenerContext
from node.kafka.forwarding import KafkaForwarding
from node.metrics.counts import KafkaCounts
from node.peers.port import Peers
from raft_meta.machine.codec import LEVELS
from raft_meta.machine.commands import SetKafkaAddresses
from raft_meta.machine.image import Image

logger = logging.getLogger(__name__)

FRAME_BYTES_MAX = 32 << 20
STRANGERS = 8
"""Clients that have not authenticated may hold this fraction (1/8) of the node's bytes of requests."""
PATIENCE = KafkaPatience()
CHECK_S = 1.0
"""How often connections are checked for clients that keep the node waiting."""
CLOSE_S = 2.0
"""How long a stop waits for the requests in work."""


class KafkaListener:
    """The Kafka interface of one node. Belongs to the data loop."""

    def __init__(
        self,
        *,
        services: KafkaServices,
        membership: Membership,
        contained: ContainedErrors,
        counts: KafkaCounts,
        addresses: Sequence[Callable[[], KafkaAddress]],
        peers: Peers,
        connections_max: int,
        request_bytes: RequestBytes | None = None,
        apis: Mapping[int, Api] = APIS,
        patience: KafkaPatience = PATIENCE,
    ) -> None:
        """Build a listener that accepts nothing yet.

        ``addresses``: where clients reach each of its sockets, once it listens. ``request_bytes``: the bound that HTTP
        shares; None: one for this listener alone.
        """
        limits = services.limits
        shared = request_bytes or RequestBytes(limits.bytes_in_flight_max)
        self._services = services
        self._membership = membership
        self._addresses = tuple(addresses)
        self._open: dict[KafkaConnection, None] = {}
        self._emptied = asyncio.Event()
        """Set when the last connection ends."""
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._equal: set[tuple[KafkaAddress, int]] = set()
        """Addresses of this node that other live nodes have, too, with the ids of these nodes."""
        self.forwarding = KafkaForwarding(services, apis, peers, counts)
        self._context = ListenerContext(
            services=services,
            apis=apis,
            frame_bytes_max=min(FRAME_BYTES_MAX, limits.request_bytes_max),
            budget=FrameBudget(shared),
            strangers_budget=FrameBudget(shared, at_most=shared.bytes_max // STRANGERS),
            strangers_turn=asyncio.Lock(),
            connections=Connections(connections_max),
            unsent=UnsentAnswers(
                bytes_max=limits.unsent_bytes_max, wait_ms_max=limits.unsent_wait_ms_max
            ),
            contained=contained,
            counts=counts,
            patience=patience,
            forwarding=self.forwarding,
            next_lane=partial(next, count()),
            on_closed=self._on_closed,
        )

    def connection(self, place: int = 0) -> KafkaConnection:
        """Return the protocol of a new connection. ``place``: that of its socket among all."""
        made = KafkaConnection(self._context, self._addresses[place])
        self._open[made] = None
        return made

    async def start(
        self, bound: Sequence[socket.socket], tls: ssl.SSLContext | None = None
    ) -> None:
        """Accept connections on sockets that are bound, one for each address.

        ``tls``: that of the API's port; None: no TLS.
        """
        loop = asyncio.get_running_loop()
        for place in range(len(self._addresses)):
            self._servers.append(
                await loop.create_server(
                    partial(self.connection, place),
                    sock=bound[place],
                    backlog=1024,
                    ssl=tls,
                    ssl_handshake_timeout=None
                    if tls is None
                    else self._context.patience.handshake_s,
                )
            )
        self._context.counts.listeners = len(self._servers)
        self._check()

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in list(self._open):
            connection.check(now_s)
        self._timer = loop.call_later(CHECK_S, self._check)

    async def close(self) -> None:
        """Accept no more, end long polls, give other requests in work a moment, and close all connections."""
        if self._timer is not None:
            self._timer.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self._open):
            connection.drain()
        for poll in list(self._services.polls):
            poll.end()
        if self._open:
            self._emptied.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), CLOSE_S)
        for connection in list(self._open):
            connection.force_close()

    def _on_closed(self, connection: KafkaConnection) -> None:
        self._open.pop(connection, None)
        if not self._open:
            self._emptied.set()

    # -- telling the cluster ---------------------------------------------------------------------

    async def advertise(self) -> None:
        """Keep this broker's address in the replicated state up to date, while the node runs."""
        await advertise(self._services, self._membership, self._row, self._look_for_equal_addresses)

    def _look_for_equal_addresses(self) -> None:
        """Count the addresses that another live node has, too, unless all nodes are to share them; warn of new ones."""
        found = set(self._equal_addresses())
        for address, node_id in sorted(found - self._equal):
            logger.warning(
                "another node has the same address for Kafka clients, so they reach one of both: set "
                "kafka_advertise, or kafka_one_address on all nodes address=%s:%d node_id=%d",
                address.host,
                address.port,
                node_id,
            )
        self._equal = found
        self._context.counts.equal_addresses = len({address for address, _ in found})

    def _equal_addresses(self) -> Iterator[tuple[KafkaAddress, int]]:
        metadata = self._services.metadata
        for address in (found() for found in self._addresses):
            for broker in metadata.image.brokers.values():
                if address.is_shared or broker.is_fenced or broker.broker_id == metadata.node_id:
                    continue
                # The listener does not matter: a client is sent to this address, and reaches one of both nodes.
                others = {(_plain(host), port) for _, host, port in broker.kafka_addresses}
                if (_plain(address.host), address.port) in others:
                    yield address, broker.broker_id

    def _row(self) -> tuple[tuple[str, str, int], ...]:
        found = [address() for address in self._addresses]
        return tuple(sorted((one.listener, one.host, one.port) for one in found))


def _plain(host: str) -> str:
    """Return the form in which equal names of hosts are equal texts."""
    return host.lower().removesuffix(".")


async def advertise(
    services: KafkaServices,
    membership: Membership,
    addresses: Callable[[], tuple[tuple[str, str, int], ...]],
    on_look: Callable[[], None],
) -> None:
    """Write the addresses into the broker's row whenever a registration or an upgrade has left it without them.

    ``on_look``: called every second, and before the addresses are written.
    """
    metadata = services.metadata

    def is_due(image: Image) -> bool:
        broker = membership.me(image)
        has_level = image.feature_level >= LEVELS[SetKafkaAddresses]
        return has_level and broker is not None and broker.kafka_addresses != addresses()

    while True:
        await metadata.wait_until(is_due, timeout_ms=LASTING_RETRY_MS)
        on_look()
        if not is_due(metadata.image):
            continue
        command = SetKafkaAddresses(
            broker_id=metadata.node_id,
            broker_epoch=membership.broker_epoch,
            addresses=addresses(),
        )
        with suppress(MilenaError):
            await metadata.propose(command, timeout_ms=LONG_PROPOSE_MS)
            continue
        await services.clock.sleep(LASTING_RETRY_MS)
