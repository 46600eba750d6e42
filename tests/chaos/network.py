"""A private network: every node is in its own namespace, and a switch process connects the namespaces by rules.

The clients (this process and its children) are in one more namespace. Entering a namespace cannot be undone, so a run
with a network needs its own process.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass

CLIENT = 254
"""The number of the clients' namespace; the others are node ids."""
CLONE_NEWNET = 0x40000000
CLOSE_TIMEOUT_S = 10


class NetworkError(Exception):
    """The network could not be created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The treatment of packets in one direction. Shares are 0 to 1; times are in ms."""

    is_cut: bool = False
    loss_share: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    double_share: float = 0.0


def address_of(place: int) -> str:
    """Return the IP address of a node or of the clients."""
    return f"10.77.0.{place}"


class Network:
    """Starts the switch, and moves this process into the clients' namespace."""

    def __init__(self, node_count: int, seed: int) -> None:
        self.tag = f"mc{os.getpid() % 100_000}"
        self._switch = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.switch", self.tag, str(node_count), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._answer() != "ready":
            raise NetworkError("a network of our own needs root, iproute2 and /dev/net/tun")
        enter_namespace(self.namespace_of(CLIENT))

    def namespace_of(self, place: int) -> str:
        """Return the name of the network namespace of a node or of the clients."""
        return f"{self.tag}-{place}"

    def rule(self, source: int, destination: int, rule: Rule) -> None:
        """Set the rule for one direction."""
        self._tell({"source": source, "destination": destination, "rule": asdict(rule)})

    def cut(self, some: Iterable[int], others: Iterable[int], *, is_one_way: bool = False) -> None:
        """Drop all packets between two groups; with ``is_one_way`` only those from the first to the second."""
        others = tuple(others)
        for one in some:
            for other in others:
                self.rule(one, other, Rule(is_cut=True))
                if not is_one_way:
                    self.rule(other, one, Rule(is_cut=True))

    def heal(self) -> None:
        """Remove all rules."""
        self._tell({"heal": True})

    def close(self) -> None:
        """Stop the switch, which removes the namespaces."""
        assert self._switch.stdin is not None
        self._switch.stdin.close()
        self._switch.wait(CLOSE_TIMEOUT_S)

    def _tell(self, command: dict[str, object]) -> None:
        assert self._switch.stdin is not None
        self._switch.stdin.write(json.dumps(command) + "\n")
        self._switch.stdin.flush()
        if self._answer() != "ok":
            raise NetworkError("the switch is gone")

    def _answer(self) -> str:
        assert self._switch.stdout is not None
        return self._switch.stdout.readline().strip()


def enter_namespace(name: str) -> None:
    """Move this process into a network namespace."""
    descriptor = os.open(f"/var/run/netns/{name}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)
