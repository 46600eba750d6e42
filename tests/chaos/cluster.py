"""The nodes of a run: processes on disks and, if requested, in network namespaces. ``close`` undoes everything."""

import contextlib
import os
import random
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from loadtest.cluster.local_cluster import free_ports
from loadtest.cluster.node_process import NodeProcess
from tests.chaos.disks import Disk, make_disk
from tests.chaos.network import Network, address_of
from tests.chaos.setup import Setup

STOP_TIMEOUT_S = 15.0
SECRET = "chaos-suite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The address of a node."""

    node_id: int
    host: str
    api_port: int
    peer_port: int
    kafka_port: int
    data: Path

    @property
    def url(self) -> str:
        """Return the URL of the node's API."""
        return f"http://{self.host}:{self.api_port}"

    @property
    def kafka_address(self) -> str:
        """Return where Kafka clients reach the node."""
        return f"{self.host}:{self.kafka_port}"


class Target(Protocol):
    """The way to start a node of the system under test."""

    ready_path: str

    def command(self, place: Place, places: Sequence[Place]) -> list[str]:
        """Return the command line of one node."""

    def environment(self) -> dict[str, str]:
        """Return variables to add to this process's environment."""


class MilenaTarget:
    """Milena, from this Python environment."""

    ready_path = "/readyz"

    def command(self, place: Place, places: Sequence[Place]) -> list[str]:
        """Return the command line of one node."""
        peers = ",".join(f"{p.node_id}={p.host}:{p.peer_port}" for p in places)
        return [
            *(sys.executable, "-m", "milena", "start"),
            *("--node-id", str(place.node_id)),
            *("--data-dir", str(place.data)),
            *("--listen", f"{place.host}:{place.api_port}"),
            *("--peer-listen", f"{place.host}:{place.peer_port}"),
            *("--kafka-listen", place.kafka_address),
            *("--peers", peers),
        ]

    def environment(self) -> dict[str, str]:
        """Return the secret of the peers."""
        return {"MILENA_CLUSTER_SECRET": SECRET}


class FakeTarget:
    """The fake cluster of ``fake`` with a bug. Its nodes share a directory; a single node has its own disk."""

    ready_path = "/v3/clusters"

    def __init__(self, bug: str, shared: Path) -> None:
        self._bug = bug
        self._shared = shared

    def command(self, place: Place, places: Sequence[Place]) -> list[str]:
        """Return the command line of one node."""
        directory = place.data if len(places) == 1 else self._shared
        return [
            *(sys.executable, "-m", "tests.chaos.fake_node"),
            *("--node-id", str(place.node_id)),
            *("--listen", f"{place.host}:{place.api_port}"),
            *("--directory", str(directory)),
            *("--peers", ",".join(f"{p.node_id}={p.url}" for p in places)),
            *("--bug", self._bug),
        ]

    def environment(self) -> dict[str, str]:
        """Return no variables."""
        return {}


def make_target(name: str, work: Path) -> Target:
    """Return the target of a name: ``milena`` or ``fake:BUG``."""
    if name == "milena":
        return MilenaTarget()
    kind, _, bug = name.partition(":")
    assert kind == "fake", name
    return FakeTarget(bug, work / "shared")


class Node:
    """One node: its address, its process, its disk."""

    def __init__(self, place: Place, disk: Disk, process: NodeProcess) -> None:
        self.place = place
        self.disk = disk
        self.process = process
        self.is_without_power = False

    @property
    def node_id(self) -> int:
        """Return the id by which other nodes know it."""
        return self.place.node_id

    @property
    def url(self) -> str:
        """Return the URL of the node's API."""
        return self.place.url

    @property
    def is_up(self) -> bool:
        """Return whether the process exists; it may be paused."""
        return self.process.is_running

    @property
    def is_healthy(self) -> bool:
        """Return whether the process exists and is not paused."""
        return self.is_up and not self.process.is_paused

    def start(self) -> None:
        """Start the process; after a power cut, mount its disk first."""
        if not self.is_up:
            self.restore_power()
            self.process.start()

    def stop(self) -> bool:
        """Stop gracefully; return whether the process ended by itself in time."""
        return self.process.stop(STOP_TIMEOUT_S)

    def restore_power(self) -> None:
        """Mount the disk again after a power cut."""
        if self.is_without_power:
            self.disk.restore_power()
            self.is_without_power = False

    def damage(self, operation: str, rng: random.Random) -> str:
        """Damage the newest segment while the node is down; return what was done."""
        return "it is up: left alone" if self.is_up else self.disk.damage(operation, rng)

    def wipe(self) -> str:
        """Empty the data directory while the node is down; return what was done."""
        return "it is up: left alone" if self.is_up else self.disk.wipe()


class Cluster:
    """All nodes of a run; their files are in ``work``."""

    def __init__(self, setup: Setup, work: Path, network: Network | None) -> None:
        self.network = network
        self._work = work
        (work / "shared").mkdir(parents=True)
        self.nodes: list[Node] = []
        ports = iter(free_ports(3 * setup.node_count))
        places = [
            Place(
                node_id=i,
                host=address_of(i) if network else "127.0.0.1",
                api_port=next(ports),
                peer_port=next(ports),
                kafka_port=next(ports),
                data=work / f"node{i}" / "data",
            )
            for i in range(1, setup.node_count + 1)
        ]
        self.target = make_target(setup.target, work)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("MILENA_")}
        try:
            for place in places:
                disk = make_disk(setup.disk, place.data.parent, size_mb=setup.disk_mb)
                command = self.target.command(place, places)
                if network:
                    namespace = network.namespace_of(place.node_id)
                    command = ["ip", "netns", "exec", namespace, *command]
                process = NodeProcess(
                    command,
                    environment={**inherited, **self.target.environment()},
                    log_path=work / f"node{place.node_id}.log",
                )
                self.nodes.append(Node(place, disk, process))
        except BaseException:
            self.close()
            raise

    def node(self, node_id: int) -> Node | None:
        """Return the node of this id; None if there is none."""
        return next((n for n in self.nodes if n.node_id == node_id), None)

    @property
    def kafka_servers(self) -> str:
        """Return where Kafka clients find the cluster."""
        return ",".join(node.place.kafka_address for node in self.nodes)

    def start(self) -> None:
        """Start every node that is down."""
        for node in self.nodes:
            node.start()

    def cut_power(self, nodes: Sequence[Node]) -> None:
        """Pause the nodes, drop the unsynced data of their disks, and kill them; nothing is acknowledged in between."""
        for node in nodes:
            node.process.pause()
        for node in nodes:
            if not node.is_without_power:
                node.disk.cut_power()
                node.is_without_power = True
        for node in nodes:
            node.process.kill()

    def heal(self) -> None:
        """Undo all faults, and start the nodes that are down."""
        if self.network:
            self.network.heal()
        for node in self.nodes:
            node.restore_power()
            node.disk.free()
            if node.process.is_paused:
                node.process.resume()
            node.start()

    def close(self) -> None:
        """Kill all nodes and unmount their disks; data in plain directories stays."""
        with contextlib.ExitStack() as stack:
            for node in self.nodes:
                stack.callback(node.disk.close)
                stack.callback(node.process.kill)

    def remove_data(self) -> None:
        """Delete all data, after a good run."""
        for node in self.nodes:
            shutil.rmtree(node.disk.root, ignore_errors=True)
        shutil.rmtree(self._work / "shared", ignore_errors=True)
