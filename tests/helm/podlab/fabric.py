"""The network of the pods: one bridge in a namespace of its own, and a namespace for each pod.

Nothing of it touches the machine's own network. The thread that runs the lab lives in the bridge's namespace, so
its probes and its DNS server do too. Names of namespaces carry this process's id; what a killed process left behind
is removed by the next one.
"""

import ctypes
import itertools
import os
import re
import signal
import time
from pathlib import Path

from tests.helm.podlab.firewall import DNS_IP, NODE_IP
from tests.helm.podlab.machine import LabError, run

NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000
BRIDGE = "pods"
BRIDGE_MAC = "02:00:00:00:00:01"
"""Fixed: a bridge without an address of its own takes the least of its ports', and pods that knew another lose it."""

BRIDGED_PACKETS_FILTERED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
"""Of the namespace that looks. Where it is on, packets from pod to pod would pass the bridge's tables as well."""

NETWORK_BITS = 16
PODS_MAX = 250 * 90
"""Addresses 198.18.1.1 and up; services begin at 198.18.96.1."""

KILL_S_MAX = 5.0
_LABS = itertools.count(1)
_OURS = re.compile(r"podlab(\d+)-.+")


class Fabric:
    """Makes namespaces and joins them. One caller at a time."""

    def __init__(self) -> None:
        self._tag = f"podlab{os.getpid()}-{next(_LABS)}"
        self._numbers = itertools.count()
        self._taken: dict[str, str] = {}

    @property
    def _own_namespace(self) -> str:
        return f"{self._tag}-fabric"

    def enter(self) -> None:
        """Make the bridge and move the calling thread to it.

        Raises:
            LabError: The machine does not let us.
        """
        remove_leftovers()
        run(["ip", "netns", "add", self._own_namespace])
        try:
            self._make_bridge()
        except LabError:
            self.close()
            raise
        enter_namespace(NAMESPACES / self._own_namespace)
        if BRIDGED_PACKETS_FILTERED.exists():
            BRIDGED_PACKETS_FILTERED.write_text("0")

    def _make_bridge(self) -> None:
        self._batch(
            self._own_namespace,
            "link set lo up",
            f"link add {BRIDGE} address {BRIDGE_MAC} type bridge",
            f"addr add {NODE_IP}/{NETWORK_BITS} dev {BRIDGE}",
            f"addr add {DNS_IP}/32 dev {BRIDGE}",
            f"link set {BRIDGE} up",
        )

    def attach(self, pod_uid: str) -> tuple[Path, str]:
        """Make a pod's namespace; where it is, and the pod's address. An address is never used again.

        Raises:
            LabError: The machine does not let us.
        """
        number = next(self._numbers)
        assert number < PODS_MAX, "a lab runs out of addresses"
        name, wire = f"{self._tag}-{number}", f"pod{number}"
        address = f"198.18.{1 + number // 250}.{1 + number % 250}"
        run(["ip", "netns", "add", name])
        self._taken[pod_uid] = name
        self._batch(
            self._own_namespace,
            f"link add {wire} type veth peer name eth0 netns {name}",
            f"link set {wire} master {BRIDGE}",
            f"link set {wire} up",
        )
        self._batch(
            name,
            "link set lo up",
            f"addr add {address}/{NETWORK_BITS} dev eth0",
            "link set eth0 up",
            f"route add default via {NODE_IP}",
        )
        return NAMESPACES / name, address

    def detach(self, pod_uid: str) -> None:
        """Remove a pod's namespace, with whatever still runs in it."""
        name = self._taken.pop(pod_uid, None)
        if name is not None:
            remove_namespace(name)

    def namespace_of(self, pod_uid: str) -> Path | None:
        """Where an attached pod's namespace is."""
        name = self._taken.get(pod_uid)
        return None if name is None else NAMESPACES / name

    def close(self) -> None:
        """Remove every namespace of this lab."""
        for pod_uid in list(self._taken):
            self.detach(pod_uid)
        remove_namespace(self._own_namespace)

    def _batch(self, namespace: str, *commands: str) -> None:
        run(["ip", "-n", namespace, "-batch", "-"], text="\n".join([*commands, ""]))


def apply_rules(namespace: Path, rules: str) -> None:
    """Replace the packet rules of a namespace.

    Raises:
        LabError: The kernel refused them, or the namespace has gone.
    """
    run(["nsenter", f"--net={namespace}", "iptables-restore"], text=rules)


def enter_namespace(path: Path) -> None:
    """Move the calling thread, and what it starts from now on, to a network namespace.

    Raises:
        LabError: The kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(descriptor, CLONE_NEWNET):
            raise LabError(f"cannot enter {path}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)


def remove_namespace(name: str) -> None:
    """Kill what runs in a namespace of ours and delete it; nothing happens when it is gone."""
    if not (NAMESPACES / name).exists():
        return
    deadline = time.monotonic() + KILL_S_MAX
    while (inside := _processes_in(name)) and time.monotonic() < deadline:
        for process in inside:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)
    run(["ip", "netns", "del", name])


def remove_leftovers() -> None:
    """Remove the namespaces of labs whose process is gone."""
    for path in NAMESPACES.iterdir() if NAMESPACES.is_dir() else ():
        owner = _OURS.fullmatch(path.name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            remove_namespace(path.name)


def _processes_in(name: str) -> list[int]:
    """NB: a process is where its first thread is, so this one, whose loop's thread is in the fabric, is not listed."""
    wanted = (NAMESPACES / name).stat().st_ino
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                is_inside = (directory / "ns" / "net").stat().st_ino == wanted
            except OSError:
                continue
            if is_inside:
                found.append(int(directory.name))
    return found
