"""Run a cluster of real node processes on loopback, for the demo and for tests."""

import asyncio
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import aiohttp

from loadtest.cluster.access import session_for
from loadtest.cluster.node_process import NodeProcess
from milena.cluster.admin import cluster_view
from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.errors import UnexpectedAnswerError

FIRST_PORT, LAST_PORT = 20000, 32000
"""The ports of nodes. They are below the range of outgoing connections (32768 and up on Linux), so no client can take
the port of a node that is down."""
KAFKA_LISTENS = re.compile(r"kafka listening (|externally )address=(\S+)")
POLL_S = 0.05
READY_TIMEOUT_S = 60.0
STOPPED_TIMEOUT_S = 20.0


class ClusterError(Exception):
    """A node failed to start or to become ready; the message names the node and its log."""


class LocalNode:
    """One node: its ports, directory, and process."""

    def __init__(self, node_id: int, directory: Path, *, api_port: int, peer_port: int) -> None:
        self.node_id = node_id
        self.data_dir = directory / f"node{node_id}"
        self.log_path = directory / f"node{node_id}.log"
        self.api_port = api_port
        self.peer_port = peer_port
        self.scheme = "http"
        self._process: NodeProcess | None = None

    @property
    def url(self) -> str:
        """Return the URL of the API."""
        return f"{self.scheme}://127.0.0.1:{self.api_port}"

    def kafka_address(self, *, is_external: bool = False) -> str:
        """Return where Kafka clients reach the node. Its log has the port that the listener got last."""
        lines = KAFKA_LISTENS.findall(self.log_path.read_text(encoding="utf-8"))
        return str([address for kind, address in lines if bool(kind) == is_external][-1])

    @property
    def peer(self) -> str:
        """Return this node's item for ``--peers``."""
        return f"{self.node_id}=127.0.0.1:{self.peer_port}"

    @property
    def process(self) -> NodeProcess:
        """Return the node's process; ``prepare`` must have been called."""
        assert self._process is not None, "the cluster prepares processes"
        return self._process

    def prepare(self, peers: str, environment: Mapping[str, str]) -> None:
        """Set the command line and the environment of the process."""
        if "MILENA_TLS_CERT_FILE" in environment:
            self.scheme = "https"
        command = (
            *(sys.executable, "-m", "milena", "start"),
            *("--node-id", str(self.node_id)),
            *("--data-dir", str(self.data_dir)),
            *("--listen", f"127.0.0.1:{self.api_port}"),
            *("--peer-listen", f"127.0.0.1:{self.peer_port}"),
            *("--peers", peers),
        )
        self._process = NodeProcess(command, environment=environment, log_path=self.log_path)

    async def stop(self) -> bool:
        """Stop gracefully, without blocking the loop; return whether the node ended by itself."""
        return await asyncio.to_thread(self.process.stop, STOPPED_TIMEOUT_S)


class LocalCluster:
    """Nodes 1..n in a directory, which must not hold another cluster's data.

    An asynchronous context manager. Entering starts the nodes and waits until all are ready; leaving kills those that
    still run. Data and logs stay.
    """

    def __init__(
        self,
        directory: Path,
        *,
        node_count: int = 3,
        environment: Mapping[str, str] | None = None,
        credentials: Credentials = ANONYMOUS,
        own_options: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """``credentials`` are for the readiness checks of a cluster with access control.

        ``own_options``: for each node, the options that it alone has.
        """
        self._credentials = credentials
        directory.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2 * node_count)
        self.nodes = tuple(
            LocalNode(i + 1, directory, api_port=ports[2 * i], peer_port=ports[2 * i + 1])
            for i in range(node_count)
        )
        peers = ",".join(node.peer for node in self.nodes)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("MILENA_")}
        secret = {"MILENA_CLUSTER_SECRET": "local-cluster"}
        for place, node in enumerate(self.nodes):
            options = own_options[place] if own_options else {}
            own = {f"MILENA_{name.upper()}": value for name, value in options.items()}
            node.prepare(peers, {**inherited, **secret, **own, **(environment or {})})

    async def __aenter__(self) -> Self:
        try:
            self.start()
            await self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start each node that does not run."""
        for node in self.nodes:
            node.process.start()

    def kill(self) -> None:
        """Kill all nodes with SIGKILL."""
        for node in self.nodes:
            node.process.kill()

    async def stop(self) -> None:
        """Stop all nodes gracefully, at the same time."""
        await asyncio.gather(*(node.stop() for node in self.nodes))

    def node(self, node_id: int) -> LocalNode:
        """Return the node of this id."""
        return self.nodes[node_id - 1]

    async def wait_ready(self, *nodes: LocalNode, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until these nodes (default: all) are ready, and each of them knows all other running nodes.

        A node that is ready before the others may not know them yet. It would refuse a topic with as many replicas as
        there are nodes.

        Raises:
            ClusterError: a node exited, or was not ready in time.
        """
        deadline_s = time.monotonic() + timeout_s
        limits = aiohttp.ClientTimeout(total=2)
        async with session_for(self._credentials, limits) as session:
            for node in nodes or self.nodes:
                while not await self._is_in(session, node):
                    if not node.process.is_running:
                        raise ClusterError(
                            f"node {node.node_id} exited with {node.process.exit_code}; "
                            f"the end of {node.log_path}:\n{node.process.log_tail()}"
                        )
                    if time.monotonic() > deadline_s:
                        raise ClusterError(
                            f"node {node.node_id} is not ready after {timeout_s:g} s; see {node.log_path}"
                        )
                    await asyncio.sleep(POLL_S)

    async def _is_in(self, session: aiohttp.ClientSession, node: LocalNode) -> bool:
        running = {n.node_id for n in self.nodes if n.process.is_running}
        return await is_ready(session, node.url) and running <= await live_nodes(session, node.url)


async def live_nodes(session: aiohttp.ClientSession, url: str) -> set[int]:
    """Return the ids of the nodes that the node at ``url`` considers alive."""
    try:
        async with session.get(f"{url}/metadata") as response:
            view = cluster_view(await response.json())
    except (aiohttp.ClientError, TimeoutError, OSError, UnexpectedAnswerError):
        return set()
    return {node.node_id for node in view.nodes if node.is_live}


async def is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    """Return whether the node at ``url`` reports that it can serve clients."""
    try:
        async with session.get(f"{url}/readyz") as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


def free_ports(count: int) -> list[int]:
    """Return unused loopback ports that no other caller gets until this process ends.

    Each port is held by a socket that is bound and never listens. A node may listen beside it, as often as it starts.
    A search for ports, here or in another process, skips a held port. On systems other than Linux the ports are not
    held: they were free a moment ago.
    """
    found: list[int] = []
    for port in _candidates():
        if len(found) == count:
            break
        if _hold(port):
            found.append(port)
    if len(found) < count:
        raise ClusterError(f"no {count} free ports between {FIRST_PORT} and {LAST_PORT}")
    return found


def _hold(port: int) -> bool:
    """Bind the port until the process ends; return False if another socket has it."""
    with socket.socket() as holder:
        try:
            holder.bind(("127.0.0.1", port))
        except OSError:
            return False
        if sys.platform == "linux":
            # SO_REUSEADDR is set after the bind, so the bind itself fails if any socket has the port. With it, a node
            # may bind and listen on the port although this socket is bound. Systems other than Linux may refuse that;
            # there the port is not held, and was only free at this moment.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Detach the descriptor from its Python object. The kernel closes it when the process ends.
            holder.detach()
    return True


def _candidates() -> Iterator[int]:
    """Yield every port of the range, from a start that differs between processes that run at the same time."""
    span = LAST_PORT - FIRST_PORT
    start = os.getpid() * 37 % span
    for step in range(span):
        yield FIRST_PORT + (start + step) % span
