"""The nodes of ``tests.support.clusters.nodes``, each with the Kafka interface."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from node.kafka.apis.api import KafkaAddress
from node.kafka.forwarding import FORWARDED
from tests.sim.kafka.wires import BrokerConnection, ClientNetwork, ConnectionLostError
from tests.support.clusters.kafka_clients import listener_of
from tests.support.clusters.nodes import Cluster, SimNode
from tests.support.disk.memory_files import Keep

if TYPE_CHECKING:
    from node.kafka.listener import KafkaListener

PORT = 9092
CONNECTIONS_MAX = 10_000


class KafkaCluster(Cluster):
    """Nodes with listeners. Connections end with the process of their node."""

    def __init__(
        self,
        clients: ClientNetwork,
        *,
        seed: int,
        initial_delay_ms: int,
        preferred_interval_ms: int,
        has_one_address: bool,
    ) -> None:
        super().__init__(
            seed=seed,
            network_ms=lambda rng: rng.choice((0.0, 1.0, 30.0)),
            initial_delay_ms=initial_delay_ms,
            preferred_interval_ms=preferred_interval_ms,
        )
        self.clients = clients
        self.has_one_address = has_one_address
        """Whether clients reach any node in place of the one that they mean."""
        self.listeners: dict[int, KafkaListener] = {}

    def _address(self, node_id: int) -> KafkaAddress:
        host = "one" if self.has_one_address else f"node{node_id}"
        return KafkaAddress(host, PORT, is_shared=self.has_one_address)

    async def restart(self, node_id: int) -> SimNode:
        """Start a node, and then let clients in."""
        node = await super().restart(node_id)
        listener = listener_of(
            node, connections_max=CONNECTIONS_MAX, address=partial(self._address, node_id)
        )
        self.network.handlers[node_id][FORWARDED.name] = listener.forwarding.on_request
        node.tasks.append(asyncio.create_task(listener.advertise()))
        self.listeners[node_id] = listener
        return node

    async def kill(self, node_id: int, *, power: bool = False, keep: Keep = "none") -> None:
        """Kill the process. Its clients hear of it, unless the power is cut."""
        self._end_connections(node_id, tells_clients=not power)
        await super().kill(node_id, power=power, keep=keep)

    async def stop_gracefully(self, node_id: int) -> None:
        """Stop the process as an operator does."""
        listener = self.listeners.pop(node_id)
        await listener.close()
        await super().stop_gracefully(node_id)

    def _end_connections(self, node_id: int, *, tells_clients: bool) -> None:
        self.listeners.pop(node_id, None)
        for link in [link for link in self.clients.links if link.node_id == node_id]:
            link.end_node(tells_client=tells_clients)

    async def close(self) -> None:
        """End all nodes; fail if a process died by itself."""
        for node_id in list(self.listeners):
            self._end_connections(node_id, tells_clients=True)
        await super().close()

    async def connect(self, node_id: int) -> BrokerConnection:
        """Return a client's new connection to a broker.

        Raises:
            ConnectionLostError: no node can be reached there.
        """
        clients = self.clients
        await asyncio.sleep(clients.delay_s())
        if self.has_one_address:
            node_id = clients.rng.choice(self.node_ids)
        if node_id in clients.unreachable:
            await asyncio.sleep(1)
            raise ConnectionLostError(f"node {node_id} does not answer")
        listener = self.listeners.get(node_id)
        if listener is None:
            raise ConnectionLostError(f"node {node_id} refuses connections")
        return BrokerConnection(clients, node_id, listener.connection())
