"""Real nodes as processes: each has a clock file and, if the judge is root, a network namespace."""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

PASSWORD = "judge-admin-password"
READY_S = 120
"""How long nodes may take to become ready after a fault. They need a few seconds, and on a machine that has no
processor to give, after the death of all three, up to a minute."""
_CATCH_UP_S = 5.0
_CLOCK = """
import os, threading, time
_path, _real, _real_ns, _shift = os.environ["JUDGE_CLOCK"], time.time, time.time_ns, [0.0]
def _look():
    try:
        with open(_path) as file:
            _shift[0] = float(file.read() or 0)
    except (OSError, ValueError):
        pass
def _watch():
    while True:
        _look()
        time.sleep(0.1)
_look()
time.time = lambda: _real() + _shift[0]
time.time_ns = lambda: _real_ns() + int(_shift[0] * 1e9)
threading.Thread(target=_watch, daemon=True).start()
"""


def _starts(data: bytes) -> list[int]:
    """Return where each batch begins (docs/record-batch.md: the first four bytes are its size)."""
    starts, at = [], 0
    while (size := int.from_bytes(data[at : at + 4], "big")) and at + size <= len(data):
        starts.append(at)
        at += size
    return starts


@dataclass
class Node:
    """One process; `is_down` means that the judge stopped it."""

    number: int
    folder: Path
    address: tuple[str, int]
    namespace: str = ""
    process: subprocess.Popen[bytes] | None = None
    is_down: bool = False
    apart_until: float = 0.0  # of the monotonic clock; infinite while the node is cut off or paused


@dataclass
class Cluster:
    """Three nodes of a cluster with access control; each is a `milena start` process."""

    folder: Path
    base_port: int
    count: int = 3
    source: Path = field(default_factory=Path.cwd)
    options: Sequence[str] = ()
    nodes: dict[int, Node] = field(default_factory=dict)
    tag: str = ""
    has_rot: bool = False

    def start(self) -> None:
        """Start all nodes and wait until each is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tag = f"j{self.base_port % 10000}"
        (self.folder / "secret").write_text("secret of the judge")
        (self.folder / "password").write_text(PASSWORD)
        (self.folder / "clock").mkdir(exist_ok=True)
        (self.folder / "clock" / "sitecustomize.py").write_text(_CLOCK)
        is_networked = os.geteuid() == 0 and self._make_network()
        for number in range(1, self.count + 1):
            host = f"10.77.{self.base_port // 10 % 250}.{number}" if is_networked else "127.0.0.1"
            port = self.base_port if is_networked else self.base_port + number
            namespace = f"{self.tag}n{number}" if is_networked else ""
            self.nodes[number] = Node(
                number, self.folder / f"node{number}", (host, port), namespace
            )
        for number in self.nodes:
            self.launch(number)
        if not self.wait_ready():
            raise RuntimeError(f"the nodes do not start: {self.all_last_words()}")

    def _make_network(self) -> bool:
        """Create a bridge and a namespace for each node; return False if this process may not."""
        octet = self.base_port // 10 % 250
        commands = [
            f"ip link add {self.tag}br type bridge",
            f"ip addr add 10.77.{octet}.254/24 dev {self.tag}br",
        ]
        commands.append(f"ip link set {self.tag}br up")
        for number in range(1, self.count + 1):
            name = f"{self.tag}n{number}"
            commands += [
                f"ip netns add {name}",
                f"ip link add {name}a type veth peer name {name}b netns {name}",
                f"ip link set {name}a master {self.tag}br up",
                f"ip -n {name} addr add 10.77.{octet}.{number}/24 dev {name}b",
                f"ip -n {name} link set {name}b up",
                f"ip -n {name} link set lo up",
            ]
        self._drop_network()
        try:
            for command in commands:
                subprocess.run(command.split(), check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            self._drop_network()
            return False
        return True

    def _drop_network(self) -> None:
        names = [f"ip netns del {self.tag}n{number}" for number in range(1, self.count + 1)]
        with contextlib.suppress(OSError):
            for command in (*names, f"ip link del {self.tag}br"):
                subprocess.run(command.split(), check=False, capture_output=True)

    def addresses(self) -> dict[int, tuple[str, int]]:
        """Return host and port of each node's API."""
        return {number: node.address for number, node in self.nodes.items()}

    def kafka_servers(self) -> str:
        """Return the addresses of the listeners for Kafka clients."""
        return ",".join(map(self._kafka_address, self.nodes.values()))

    def _kafka_address(self, node: Node) -> str:
        port = self.base_port + 200 + (0 if node.namespace else node.number)
        return f"{node.address[0]}:{port}"

    def launch(self, number: int) -> None:
        """Start the process of a node."""
        node = self.nodes[number]
        peer_port = self.base_port + 100
        peers = ",".join(
            f"{n.number}={n.address[0]}:{peer_port if n.namespace else peer_port + n.number}"
            for n in self.nodes.values()
        )
        peer = f"{node.address[0]}:{peer_port if node.namespace else peer_port + number}"
        command = [
            str(Path(sys.executable).parent / "milena"),
            "start",
            "--node-id",
            str(number),
            "--data-dir",
            str(node.folder),
        ]
        command += [
            "--listen",
            "{}:{}".format(*node.address),
            "--peer-listen",
            peer,
            "--peers",
            peers,
        ]
        command += ["--cluster-secret-file", str(self.folder / "secret"), "--auto-create-topics"]
        command += [
            "--admin-password-file",
            str(self.folder / "password"),
            "--retention-check-ms",
            "1000",
            "--kafka-listen",
            self._kafka_address(node),
            "--streams-max",
            "24",
            *self.options,
        ]
        path = f"{self.folder / 'clock'}:{self.source}"
        environment = {
            **os.environ,
            "MILENA_PURE": "1",
            "PYTHONPATH": path,
            "JUDGE_CLOCK": str(self._clock(number)),
        }
        if node.namespace:
            command = ["ip", "netns", "exec", node.namespace, *command]
        with (self.folder / f"node{number}.log").open("ab") as log:
            node.process = subprocess.Popen(
                command,
                cwd=self.source,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        node.is_down = False
        self._set_apart(number, is_apart=False)

    def _clock(self, number: int) -> Path:
        return self.folder / f"clock{number}"

    def set_clock(self, number: int, shift_s: float) -> None:
        """Shift a node's wall clock, now and after a restart."""
        self._clock(number).write_text(str(shift_s))

    def wait_ready(self, seconds: float = READY_S) -> bool:
        """Wait until every node says that it is ready; return False if one does not in time."""
        until = time.monotonic() + seconds
        for node in self.nodes.values():
            while True:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    link = http.client.HTTPConnection(*node.address, timeout=2)
                    link.request("GET", "/readyz")
                    is_ready = link.getresponse().status == 200
                    link.close()
                    if is_ready:
                        break
                if time.monotonic() > until:
                    return False
                time.sleep(0.1)
        return True

    def died(self) -> list[int]:
        """Return the nodes whose process ended by itself."""
        return [
            n.number
            for n in self.nodes.values()
            if not n.is_down and n.process and n.process.poll() is not None
        ]

    def last_words(self, number: int) -> str:
        """Return the exit code of a node's process, and the end of its log."""
        process = self.nodes[number].process
        lines = (self.folder / f"node{number}.log").read_text(errors="replace").splitlines()
        code = None if process is None else process.returncode
        how = "its process runs" if code is None else f"its process ended with {code}"
        return f"{how}: {' / '.join(lines[-12:])}"

    def all_last_words(self) -> str:
        """Return the last words of all nodes."""
        return "; ".join(f"node {number}: {self.last_words(number)}" for number in self.nodes)

    def signal(self, number: int, what: signal.Signals) -> None:
        """Send a signal to a node's process."""
        process = self.nodes[number].process
        if process is not None and process.poll() is None:
            process.send_signal(what)

    def kill(self, number: int) -> None:
        """Kill a node with SIGKILL."""
        node = self.nodes[number]
        node.is_down = True
        self.signal(number, signal.SIGKILL)
        if node.process is not None:
            node.process.wait()

    def pause(self, number: int, *, is_paused: bool) -> None:
        """Stop a node's process, or let it go on."""
        self.signal(number, signal.SIGSTOP if is_paused else signal.SIGCONT)
        self._set_apart(number, is_apart=is_paused)

    def is_apart(self, number: int) -> bool:
        """Return whether a node may not know the news of the others: it is cut off or paused, or was a moment ago."""
        return time.monotonic() < self.nodes[number].apart_until

    def _set_apart(self, number: int, *, is_apart: bool) -> None:
        until = math.inf if is_apart else time.monotonic() + _CATCH_UP_S
        self.nodes[number].apart_until = until

    def cut(self, number: int, *, is_cut: bool) -> None:
        """Cut a node off from the other nodes, but not from clients. Without namespaces, the node is paused instead."""
        node = self.nodes[number]
        if not node.namespace:
            self.pause(number, is_paused=is_cut)
            return
        self._set_apart(number, is_apart=is_cut)
        for other in self.nodes.values():
            if other is not node:
                word = "add" if is_cut else "del"
                command = f"ip -n {node.namespace} route {word} blackhole {other.address[0]}/32"
                subprocess.run(command.split(), check=False, capture_output=True)

    def may_stop(self, number: int) -> bool:
        """Return whether a node's process ended as documented: it had to cut a log at bytes that the judge changed."""
        return self.has_rot and "cannot cut" in self.last_words(number)

    def rot(self, number: int, rng: random.Random) -> str:
        """Change one bit of a batch that a node stored in the last minute; return where, for the list of faults.

        A copy's last three batches stay whole. Other nodes may not have them yet.
        """
        paths = list(self.nodes[number].folder.glob("topics/*/*/*.log"))
        rng.shuffle(paths)
        for path in paths:
            with contextlib.suppress(OSError):  # retention may remove it meanwhile
                starts = _starts(path.read_bytes())[:-3]
                if len(starts) < 2 or path.stat().st_mtime < time.time() - 60:
                    continue
                byte = rng.randrange(starts[0], starts[-1])
                with path.open("r+b", buffering=0) as file:
                    file.seek(byte)
                    changed = file.read(1)[0] ^ 1 << rng.randrange(8)
                    file.seek(byte)
                    file.write(bytes([changed]))
                self.has_rot = True
                return f"byte {byte} of {path.relative_to(self.folder)}"
        return "no batch to change"

    def stop(self, *, keep: bool = False) -> None:
        """Kill every node, and remove the cluster's network and files."""
        for node in self.nodes.values():
            self.signal(node.number, signal.SIGCONT)
            self.kill(node.number)
        self._drop_network()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
