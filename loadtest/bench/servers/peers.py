"""Start the programs that Milena is compared with, on this machine, with their own directories and ports.

Milena needs none of them, and does not install them. If one is missing, the report says how to get it, and leaves out
the rows that need it.
"""

import asyncio
import json
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from loadtest.bench.clients.http_load import HttpLoadError, host_and_port
from loadtest.bench.clients.nats_wire import NatsLoad
from loadtest.cluster.local_cluster import free_ports
from loadtest.cluster.node_process import NodeProcess
from prerequisites import HOW_TO_GET, find_program

READY_S = 30.0
_POLL_S = 0.05
_REPLICAS = 3


class PeerMissingError(Exception):
    """A program is not installed; the message says how to get it."""


def executable(name: str) -> str:
    """Return the path of a peer's program, from PATH or from the folder of this Python.

    Raises:
        PeerMissingError: the program is in neither.
    """
    found = find_program(name)
    if found is None:
        raise PeerMissingError(f"{name} is not installed; to get it: {HOW_TO_GET[name]}")
    return found


@contextmanager
def processes(
    commands: Sequence[Sequence[str]], *, name: str, directory: Path
) -> Iterator[tuple[int, ...]]:
    """Run programs, yield their process ids, and kill them at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    started = []
    try:
        for number, command in enumerate(commands):
            process = NodeProcess(
                command, environment={}, log_path=directory / f"{name}-{number}.log"
            )
            process.start()
            started.append(process)
        yield tuple(process.pid for process in started if process.pid is not None)
    finally:
        for process in started:
            process.kill()


async def listening(address: str, what: str) -> None:
    """Wait until a server listens at an address, or at that of a URL.

    Raises:
        HttpLoadError: no server listens in time.
    """
    ends_s = perf_counter() + READY_S
    while True:
        try:
            _, writer = await asyncio.open_connection(*host_and_port(address))
        except OSError:
            if perf_counter() > ends_s:
                raise HttpLoadError(f"{what} does not listen at {address}") from None
            await asyncio.sleep(_POLL_S)
        else:
            writer.close()
            return


class NatsCluster:
    """Three servers with JetStream on disk."""

    def __init__(self, ports: Sequence[int], pids: tuple[int, ...]) -> None:
        self.pids = pids
        self._ports = ports
        self._leader = 0

    async def stream(self) -> NatsLoad:
        """Create an empty stream of three replicas; return a connection to the server that leads it.

        Raises:
            LoadError, OSError: the cluster is not ready in time.
        """
        ends_s = perf_counter() + READY_S
        while True:
            try:
                leader = await self._create()
            except (HttpLoadError, OSError):
                if perf_counter() > ends_s:
                    raise
                await asyncio.sleep(4 * _POLL_S)
                continue
            # The replicas of the stream start one after the other; wait for them.
            await asyncio.sleep(4 * _POLL_S)
            self._leader = int(leader.removeprefix("n"))
            return await self.reconnect()

    @property
    def leader_port(self) -> int:
        """Return the port of the server that leads the stream."""
        return self._ports[self._leader]

    async def _create(self) -> str:
        load = await NatsLoad.connect(self._ports[0])
        try:
            return await load.create_stream(replicas=_REPLICAS)
        finally:
            load.close()

    async def reconnect(self) -> NatsLoad:
        """Return a new connection to the server that leads the stream."""
        return await NatsLoad.connect(self.leader_port)


@contextmanager
def nats_cluster(directory: Path, *, is_synced: bool) -> Iterator[NatsCluster]:
    """Start a cluster. If ``is_synced``, each write is synced before its acknowledgement, else every two minutes."""
    program = executable("nats-server")
    ports = free_ports(2 * _REPLICAS)
    api, cluster = ports[:_REPLICAS], ports[_REPLICAS:]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in cluster)
    commands = []
    for number in range(_REPLICAS):
        folder = directory / f"n{number}"
        folder.mkdir(parents=True)
        interval = ', sync_interval: "always"' if is_synced else ""
        (folder / "nats.conf").write_text(
            f"server_name: n{number}\nlisten: 127.0.0.1:{api[number]}\n"
            f'jetstream {{ store_dir: "{folder}"{interval} }}\n'
            f"cluster {{ name: bench, listen: 127.0.0.1:{cluster[number]}, routes: [{routes}] }}\n"
        )
        commands.append([program, "-c", str(folder / "nats.conf")])
    with processes(commands, name="nats", directory=directory) as pids:
        yield NatsCluster(api, pids)


async def etcd_leader(urls: Sequence[str]) -> str:
    """Return the URL of the member that leads, where a put needs no forwarding.

    Raises:
        HttpLoadError: no member is the leader in time.
    """
    ends_s = perf_counter() + READY_S
    while perf_counter() < ends_s:
        for url in urls:
            if await asyncio.to_thread(_leads, url):
                return url
        await asyncio.sleep(4 * _POLL_S)
    raise HttpLoadError("etcd has no leader")


def _leads(url: str) -> bool:
    request = urllib.request.Request(f"{url}/v3/maintenance/status", data=b"{}")  # noqa: S310 - our own
    try:
        with urllib.request.urlopen(request, timeout=2) as response:  # noqa: S310 - our own
            status = json.load(response)
    except (OSError, ValueError):
        return False
    return bool(status.get("leader") == status["header"]["member_id"])


@contextmanager
def etcd_cluster(directory: Path) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """Start three members, which sync a put on a majority before the response; yield their URLs and process ids."""
    program = executable("etcd")
    ports = free_ports(2 * _REPLICAS)
    api, cluster = ports[:_REPLICAS], ports[_REPLICAS:]
    members = ",".join(f"e{n}=http://127.0.0.1:{port}" for n, port in enumerate(cluster))
    urls = [f"http://127.0.0.1:{port}" for port in api]
    commands = []
    for number, here in enumerate(urls):
        peer = f"http://127.0.0.1:{cluster[number]}"
        commands.append(
            [
                *(program, "--name", f"e{number}", "--data-dir", str(directory / f"e{number}")),
                *("--listen-client-urls", here, "--advertise-client-urls", here),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", members, "--initial-cluster-state", "new"),
                *("--log-level", "error"),
            ]
        )
    with processes(commands, name="etcd", directory=directory) as pids:
        yield urls, pids


@contextmanager
def nginx(directory: Path, content: bytes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Serve ``content`` by one nginx worker with sendfile; yield the URL and the process ids."""
    program = executable("nginx")
    (port,) = free_ports(1)
    (directory / "html").mkdir(parents=True)
    (directory / "html" / "content").write_bytes(content)
    temporary = " ".join(
        f"{name}_temp_path {directory}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (directory / "nginx.conf").write_text(
        f"daemon off; master_process off; worker_processes 1; pid {directory}/pid;\n"
        f"error_log {directory}/error.log;\nevents {{ worker_connections 512; }}\n"
        f"http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000; {temporary}\n"
        f" server {{ listen 127.0.0.1:{port}; root {directory}/html; }} }}\n"
    )
    command = [program, "-c", str(directory / "nginx.conf"), "-p", str(directory)]
    with processes([command], name="nginx", directory=directory) as pids:
        yield f"http://127.0.0.1:{port}", pids


@contextmanager
def tansu(directory: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Start one broker of Tansu, which keeps records in memory; yield its address and the process ids."""
    (port,) = free_ports(1)
    place = f"tcp://127.0.0.1:{port}"
    command = [executable("tansu"), "broker", "--storage-engine", "memory://tansu/"]
    command += ["--listener-url", place, "--advertised-listener-url", place]
    with processes([command], name="tansu", directory=directory) as pids:
        yield f"127.0.0.1:{port}", pids


@contextmanager
def bare_kafka(directory: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Start the bare listener of Kafka's protocol; yield its address and the process ids."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "loadtest.bench.servers.bare_kafka", str(port)]
    with processes([command], name="bare-kafka", directory=directory) as pids:
        yield f"127.0.0.1:{port}", pids


@contextmanager
def bare_server(directory: Path, content: bytes = b"") -> Iterator[tuple[str, tuple[int, ...]]]:
    """Start the bare server with this content and an empty log; yield the URL and the process ids."""
    (port,) = free_ports(1)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "content").write_bytes(content)
    command = [sys.executable, "-m", "loadtest.bench.servers.bare_server"]
    command += [str(port), str(directory)]
    with processes([command], name="bare", directory=directory) as pids:
        yield f"http://127.0.0.1:{port}", pids
