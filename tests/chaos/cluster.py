"""The nodes of a run: processes on disks, in namespaces where wanted. Everything is undone by ``close``."""

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
    """Where a node is to be found."""

    node_id: int
    host: str
    api_port: int
    peer_port: int
    data: Path

    @property
    def url(self) -> str:
        """Of its API."""
        return f"http://{self.host}:{self.api_port}"


class Target(Protocol):
    """How the system under test is started."""

    ready_path: str

    def command(self, place: Place, places: Sequence[Place]) -> list[str]:
        """The command line of one node."""

    def environment(self) -> dict[str, str]:
        """On top of this process's."""


class MilenaTarget:
    """Milena, from this environment."""

    ready_path = "/readyz"

    def command(self, place: Place, places: Sequence[Place]) -> list[str]:
        """The command line of one node."""
        peers = ",".join(f"{p.node_id}={p.host}:{p.peer_port}" for p in places)
        return [
            *(sys.executable, "-m", "milena", "start"),
            *("--node-id", str(place.node_id)),
            *("--data-dir", str(place.data)),
            *("--listen", f"{place.host}:{place.api_port}"),
            *("--peer-listen", f"{place.host}:{place.peer_port}"),
            *("--peers", peers),
        ]

    def environment(self) -> dict[str, str]:
        """The peers' secret."""
        return {"MILENA_CLUSTER_SECRET": SECRET}


class FakeTarget:
    """The stand-in of ``fake``, with one of its bugs. Its nodes share a directory; a single one has a disk."""

    ready_path = "/v3/clusters"

    def __init__(self, bug: str, shared: Path) -> None:
        self._bug = bug
        self._shared = shared

    def command(self, place: Place, places: Sequence[Place]) -> list[str]:
        """The command line of one node."""
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
        """Nothing."""
        return {}


def make_target(name: str, work: Path) -> Target:
    """``milena`` or ``fake:BUG``."""
    if name == "milena":
        return MilenaTarget()
    kind, _, bug = name.partition(":")
    assert kind == "fake", name
    return FakeTarget(bug, work / "shared")


class Node:
    """One node: its place, its process, its disk."""

    def __init__(self, place: Place, disk: Disk, process: NodeProcess) -> None:
        self.place = place
        self.disk = disk
        self.process = process
        self.is_without_power = False

    @property
    def node_id(self) -> int:
        """As its peers know it."""
        return self.place.node_id

    @property
    def url(self) -> str:
        """Of its API."""
        return self.place.url

    @property
    def is_up(self) -> bool:
        """Its process exists; it may be paused."""
        return self.process.is_running

    @property
    def is_healthy(self) -> bool:
        """Up and not paused."""
        return self.is_up and not self.process.is_paused

    def start(self) -> None:
        """Start it, after a power cut with its disk mounted again."""
        if not self.is_up:
            self.restore_power()
            self.process.start()

    def stop(self) -> bool:
        """Graceful stop; True when it obeyed in time."""
        return self.process.stop(STOP_TIMEOUT_S)

    def restore_power(self) -> None:
        """After a power cut: mount again."""
        if self.is_without_power:
            self.disk.restore_power()
            self.is_without_power = False

    def damage(self, operation: str, rng: random.Random) -> str:
        """Harm its newest segment while it is down."""
        return "it is up: left alone" if self.is_up else self.disk.damage(operation, rng)

    def wipe(self) -> str:
        """Empty its data directory while it is down."""
        return "it is up: left alone" if self.is_up else self.disk.wipe()


class Cluster:
    """All nodes of a run, in ``work``."""

    def __init__(self, setup: Setup, work: Path, network: Network | None) -> None:
        self.network = network
        self._work = work
        (work / "shared").mkdir(parents=True)
        self.nodes: list[Node] = []
        ports = free_ports(2 * setup.node_count)
        places = [
            Place(
                node_id=i,
                host=address_of(i) if network else "127.0.0.1",
                api_port=ports[2 * i - 2],
                peer_port=ports[2 * i - 1],
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
        """The node of this id."""
        return next((n for n in self.nodes if n.node_id == node_id), None)

    def start(self) -> None:
        """Start every node that is down."""
        for node in self.nodes:
            node.start()

    def cut_power(self, nodes: Sequence[Node]) -> None:
        """Freeze, drop what the disks have not synced, kill: nothing is acknowledged in between."""
        for node in nodes:
            node.process.pause()
        for node in nodes:
            if not node.is_without_power:
                node.disk.cut_power()
                node.is_without_power = True
        for node in nodes:
            node.process.kill()

    def heal(self) -> None:
        """Mend everything and start what is down."""
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
        """After a good run."""
        for node in self.nodes:
            shutil.rmtree(node.disk.root, ignore_errors=True)
        shutil.rmtree(self._work / "shared", ignore_errors=True)
