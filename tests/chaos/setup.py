"""What a run is made of: the cluster's shape, the workload, disks, network and goals. Values only."""

from dataclasses import dataclass, field, replace
from enum import StrEnum, unique

from tests.chaos.history import Goals, View

NO_GOALS = Goals()
PADDING_BYTES = 64
TRANSACTIONS_PER_S = 5.0
PLACES = (("left", 0), ("left", 1), ("right", 0), ("right", 1))
"""Topics and partitions that transactions write to. What flows from one topic to the other flows back, too."""


@unique
class DiskKind(StrEnum):
    """Where a node's data lies."""

    DIR = "dir"
    TMPFS = "tmpfs"
    """Small: it can be filled."""
    LOOP = "loop"
    """ext4 on a loop device: it can be filled, and lose its power."""


@unique
class NetworkKind(StrEnum):
    """How nodes and clients reach each other."""

    NONE = "none"
    """Loopback."""
    NETNS = "netns"
    """A network namespace each, joined by our switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Who writes and reads, and how. Times in seconds."""

    acks: tuple[str, ...] = ("all",)
    """One of them per request, at random."""
    writers: int = 6
    keys_per_writer: int = 3
    requests_per_s: float = 40.0
    """Per writer, at most: a writer waits for its answer first."""
    records_per_request_max: int = 4
    padding_bytes: int = PADDING_BYTES
    readers: int = 4
    write_timeout_s: float = 2.0
    read_timeout_s: float = 2.0
    retries: int = 0
    """The same records again after an outcome that is not success."""
    is_idempotent: bool = False
    transactions_per_s: float = 0.0
    """Of each program that writes transactions, at most; 0: there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run."""

    scenario: str
    seconds: float
    seed: int
    target: str = "milena"
    """``milena``, or ``fake:BUG``: see ``fake``."""
    node_count: int = 3
    topic: str = "chaos"
    partitions: int = 3
    replication_factor: int = 3
    configs: dict[str, str] = field(default_factory=dict)
    disk: DiskKind = DiskKind.DIR
    disk_mb: int = 512
    network: NetworkKind = NetworkKind.NONE
    workload: Workload = Workload()
    start_timeout_s: float = 90.0
    final_timeout_s: float = 60.0
    goals: Goals = NO_GOALS

    @property
    def topics(self) -> dict[str, int]:
        """Topics and how many partitions each has."""
        parts = [name for name, _ in PLACES] if self.workload.transactions_per_s else []
        return {self.topic: self.partitions, **{name: parts.count(name) for name in parts}}

    def located(self, view: View, partition: int) -> tuple[str, int]:
        """Topic and partition of what a history calls a partition of this view."""
        return (self.topic, partition) if view is View.PLAIN else PLACES[partition]


MILENA_CONFIGS = {"min.insync.replicas": "2", "segment.bytes": "1048576"}
"""Segments of a megabyte: a run rolls some."""
BULKY_BYTES = 4096
"""A value that uses preallocated room up within seconds: a full disk is to be felt."""
AFTER_HEAL_S = 10.0
RECOVERY_S = 3.0
RECOVERY_S_OF = {
    "kill-leader": 2.0,
    "stop-leader": 0.5,
    "rolling-restart": 0.5,
    "kill-follower": 1.0,
    "power-leader": 2.0,
    "torn-tail": 2.0,
    "bit-flip": 2.0,
    "emptied-directory": 2.0,
}


def milena_setup(scenario: str, seconds: float, seed: int) -> Setup:
    """Three Milena nodes with the goals that the project sets itself."""
    goals = Goals(
        recovery_s=RECOVERY_S_OF.get(scenario, RECOVERY_S),
        after_heal_s=AFTER_HEAL_S,
        is_contiguous=True,
        is_strict=True,
    )
    workload = Workload(
        padding_bytes=BULKY_BYTES if scenario == "disk-full" else PADDING_BYTES,
        transactions_per_s=TRANSACTIONS_PER_S,
    )
    return Setup(
        scenario=scenario,
        seconds=seconds,
        seed=seed,
        configs=MILENA_CONFIGS,
        workload=workload,
        goals=goals,
    )


def fake_setup(
    bug: str,
    scenario: str,
    seconds: float,
    seed: int,
    *,
    node_count: int = 3,
    has_transactions: bool = False,
) -> Setup:
    """The stand-in cluster with one of its bugs; no goals."""
    workload = replace(
        Workload(),
        write_timeout_s=1.0,
        transactions_per_s=TRANSACTIONS_PER_S if has_transactions else 0.0,
    )
    return Setup(
        scenario=scenario,
        seconds=seconds,
        seed=seed,
        target=f"fake:{bug}",
        node_count=node_count,
        partitions=1 if node_count == 1 else 2,
        disk_mb=32,
        workload=workload,
        final_timeout_s=20.0,
    )
